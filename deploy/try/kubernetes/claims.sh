# What run claims, in the order of deploy/README. Each try_ is one claim. $top is the repository.

webhook_token=webhook-token-of-the-trial
forward_signing_key=whsec_$(echo signing-key-of-the-trial-32-bytes | base64)

# As a user edits them. The client ID is the sandbox's.
manifest() { sed 's/my-client-id/demo/' "$top/deploy/kubernetes/$1"; }

# quiet COMMAND... holds if it succeeds and no line of it is a warning, such as one of Pod Security.
quiet() {
	local said
	said=$("$@" 2>&1) || { echo "$said"; return 1; }
	echo "$said"
	! grep -i warning <<<"$said"
}

apply() { manifest "$1" | quiet kubectl apply --validate=strict -f -; }

ready() { kubectl rollout status --timeout=180s "$@"; }

# sender COMMAND... runs it in a pod elsewhere, where the ingress would be.
sender() { kubectl -n ingress-nginx exec -i sender -- "$@"; }

# get URL [HEADER]..., post BODY URL [HEADER]...: the status of a request from somebody else's pod, or "refused".
get() { post "" "$@"; }

post() {
	sender python3 - "$@" <<-'END'
		import sys, urllib.request, urllib.error
		body, url, *headers = sys.argv[1:]
		request = urllib.request.Request(url, body.encode() or None, {"Content-Type": "application/json"} | dict(h.split(": ") for h in headers))
		try:
		    print(urllib.request.urlopen(request, timeout=10).status)
		except urllib.error.HTTPError as e:
		    print(e.code)
		except OSError as e:
		    print("refused")
	END
}

load() {
	sender traffic send -webhooks "http://${gate-usher-gateway.default.svc}:8090/webhooks" -token "$webhook_token" \
		-receiver http://provisioning.default.svc:3000 -pause 100ms -patience 60s "$@" </dev/null
}

# restarts SELECTOR [CONTAINERS]: how often containers of these pods were restarted.
restarts() { kubectl get pods -l "$1" -o json | jq '[.items[].status | (.containerStatuses // []) + (.initContainerStatuses // []) | .[].restartCount] | add'; }

pods() { kubectl get pods -l "$1" --field-selector status.phase=Running -o jsonpath='{.items[*].metadata.name}'; }

address() { kubectl get pod "$1" -o jsonpath='{.status.podIP}'; }

claims() {
	claim "two nodes and a DNS are ready" try_cluster
	! grep '^no ' "$work/table" || return 1 # nothing else could hold
	claim "each file of deploy/kubernetes passes --validate=strict, and Pod Security 'restricted' warns of nothing" try_valid
	claim "what stands beside usher is ready" try_beside

	claim "sidecar.yaml: its pods become ready once a wrong client secret is right, without a restart" try_sidecar
	claim "sidecar.yaml: usher serves its neighbour, and nobody else" try_neighbour
	claim "sidecar.yaml: the program's first call and its last, while the pod ends, are answered" try_last_call
	claim "job.yaml: the Job completes" try_job
	claim "job.yaml: the CronJob's Job completes" try_cronjob
	claim "kustomize/sidecar: usher beside a Deployment that does not know it" try_component
	claim "kustomize/sidecar-metrics: Prometheus reads them, with the token" try_component_metrics

	claim "gateway.yaml: two replicas become ready, one on each node, and 'usher inbox ls' answers" try_gateway
	claim "reconcile.yaml: the CronJob finds that nothing differs" try_reconcile
	claim "reconcile.yaml: it fails, once, and says what differs" try_reconcile_lost
	claim "reconcile.yaml: it runs by its schedule" try_reconcile_schedule
	claim "gateway.yaml: a rolling update under load: all webhooks 200, and in order; still one on each node" try_rolling_update
	claim "gateway.yaml: a drained node under load: all webhooks 200, and in order" try_drain
	kubectl uncordon node2 >/dev/null
	for file in gateway gateway-networkpolicy reconcile; do manifest $file.yaml | kubectl delete --ignore-not-found -f - || true; done >/dev/null 2>&1

	volume file >/dev/null
	volume file-entitlements >/dev/null
	for variant in file file-entitlements postgres; do
		claim "what the chart makes of $variant-values.yaml: no warning, ready, and it answers" try_chart $variant
		chart $variant | kubectl -n billing delete --ignore-not-found -f - >/dev/null 2>&1 || true
	done
	volume helm >/dev/null
	claim "helm install of the chart, as deploy/README says: no warning, ready; helm upgrade; helm uninstall leaves only the volume" try_helm

	echo "untried  the chart's PodMonitor and PrometheusRule: there is no operator that takes them" | tee -a "$work/table"
	echo "untried  NetworkPolicies: the cluster takes them, but no network plugin that enforces them could be had as a Go module or a Debian package" | tee -a "$work/table"
}

try_cluster() {
	eventually 300 kubectl get node node1 node2 >/dev/null 2>&1
	kubectl wait --for=condition=Ready --timeout=180s node --all
	kubectl apply -f "$here/coredns.yaml"
	ready -n kube-system deployment/coredns
	kubectl label --overwrite namespace default pod-security.kubernetes.io/{enforce,warn}=restricted
	note "$(kubectl get node node1 -o json | jq -r '.status.nodeInfo | "kubelet \(.kubeletVersion), \(.containerRuntimeVersion), kernel \(.kernelVersion)"'), $(runc --version | head -1)"
}

try_valid() {
	for file in "$top"/deploy/kubernetes/*.yaml; do
		quiet kubectl apply --dry-run=server --validate=strict -f "$file"
	done
}

try_beside() {
	for name in billing vendor postgres ingress-nginx monitoring; do kubectl create namespace $name; done
	kubectl label namespace billing pod-security.kubernetes.io/{enforce,warn}=restricted
	kubectl -n vendor create secret tls billing-tls --cert "$work/pki/billing.crt" --key "$work/pki/billing.key"
	kubectl -n postgres create secret tls db-tls --cert "$work/pki/db.crt" --key "$work/pki/db.key"
	kubectl -n postgres create secret generic db --from-literal=password=inbox-password-of-the-trial
	eventually 60 kubectl get serviceaccount default -n monitoring
	kubectl apply -f "$here/beside.yaml"
	ready -n vendor deployment/billing
	ready -n postgres statefulset/db
	ready deployment/provisioning
	kubectl wait --for=condition=Ready --timeout=60s -n ingress-nginx pod/sender
	kubectl wait --for=condition=Ready --timeout=60s -n monitoring pod/prometheus
}

# secret NAME KEY=VALUE... as kubectl makes it from files, or changes it.
secret() {
	local name=$1
	shift
	kubectl -n "${namespace-default}" create secret generic "$name" --dry-run=client -o yaml "${@/#/--from-literal=}" | kubectl apply -f - 2>&1
}

try_sidecar() {
	secret billing client-secret=wrong
	apply sidecar.yaml
	eventually 60 refuses_secret
	secret billing client-secret=demo-secret
	ready deployment/legacy-app
	is 0 "$(restarts app.kubernetes.io/name=legacy-app)"
}

refuses_secret() { kubectl logs deployment/legacy-app -c usher | grep invalid_client; }

try_neighbour() {
	local pod ip
	pod=$(pods app.kubernetes.io/name=legacy-app | cut -d' ' -f1)
	ip=$(address "$pod")
	is 200 "$(get "http://$ip:8000/")" # the program, which calls usher
	is 200 "$(kubectl exec "$pod" -c app -- python3 -c 'import urllib.request as u; print(u.urlopen("http://127.0.0.1:8000").read().decode())')"
	is refused "$(get "http://$ip:8080/graphql")"
	is refused "$(get "http://$ip:9095/healthz")"
}

try_last_call() {
	local pod log=$work/last-call
	pod=$(pods app.kubernetes.io/name=legacy-app | cut -d' ' -f1)
	kubectl logs -f "$pod" -c app >"$log" &
	sleep 1
	kubectl delete pod "$pod" --wait
	wait $!
	is "the first call: 200 the last call: 200" "$(paste -sd' ' "$log")"
}

ended() { kubectl get "job/$1" -o jsonpath='{.status.conditions[*].type}' | grep -wE 'Complete|Failed'; }

try_job() {
	apply job.yaml
	eventually 120 ended billing-report
	kubectl wait --for=condition=Complete --timeout=1s job/billing-report
	note "$(kubectl get job billing-report -o json | jq -r '.status | (.completionTime | fromdate) - (.startTime | fromdate) | "\(.) s"')"
}

try_cronjob() {
	kubectl create job --from=cronjob/billing-report-nightly nightly
	eventually 120 ended nightly
	kubectl wait --for=condition=Complete --timeout=1s job/nightly
	kubectl delete -f "$top/deploy/kubernetes/job.yaml" -f "$top/deploy/kubernetes/sidecar.yaml"
}

# kustomization COMPONENT... prints a Deployment that knows nothing of usher, with these.
kustomization() {
	local dir=$work/kustomization
	rm -rf "$dir" && mkdir -p "$dir"
	cp -r "$top"/deploy/kustomize/* "$dir"
	cat >"$dir/deployment.yaml" <<-END
		apiVersion: apps/v1
		kind: Deployment
		metadata: {name: other-app}
		spec:
		  selector: {matchLabels: {app: other-app}}
		  template:
		    metadata: {labels: {app: other-app}}
		    spec:
		      securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
		      containers:
		        - name: app
		          image: registry.example.com/legacy-app:v1
		          env: [{name: BILLING_URL, value: "http://127.0.0.1:8080/graphql"}]
		          securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
	END
	cat >"$dir/kustomization.yaml" <<-END
		resources: [deployment.yaml]
		components: [$(IFS=,; echo "$*")]
		configMapGenerator:
		  - name: usher-sidecar
		    literals: [USHER_BASE_URL=https://billing.example.com, USHER_CLIENT_ID=demo]
	END
	kubectl kustomize "$dir"
}

try_component() {
	secret usher-sidecar client-secret=demo-secret
	quiet kubectl apply --validate=strict -f <(kustomization sidecar)
	ready deployment/other-app
	kubectl logs deployment/other-app -c app | grep 'first call: 200'
	is refused "$(get "http://$(address "$(pods app=other-app)"):9095/metrics")"
}

try_component_metrics() {
	local url
	secret usher-sidecar-admin admin-token=admin-token-of-the-trial admin-read-token=read-token-of-the-trial
	quiet kubectl apply --validate=strict -f <(kustomization sidecar sidecar-metrics)
	ready deployment/other-app
	eventually 60 one_pod app=other-app
	url=http://$(address "$(pods app=other-app)"):9095/metrics
	is 401 "$(get "$url")"
	is 200 "$(get "$url" "Authorization: Bearer read-token-of-the-trial")"
	kubectl delete deployment other-app
}

one_pod() { is 1 "$(pods "$1" | wc -w)"; }

gateway_secret() {
	secret usher-gateway "webhook-token=$1" forward-signing-key=$forward_signing_key "inbox-password=$2" \
		admin-token=admin-token-of-the-trial admin-read-token=read-token-of-the-trial
}

try_gateway() {
	gateway_secret $webhook_token inbox-password-of-the-trial
	kubectl create configmap usher-gateway-db --from-file=ca.crt="$work/pki/ca.crt"
	apply gateway.yaml
	apply gateway-networkpolicy.yaml
	ready deployment/usher-gateway
	spread
	kubectl exec deploy/usher-gateway -- /usher inbox ls
}

spread() { is "node1 node2" "$(kubectl get pods -l app.kubernetes.io/name=usher-gateway --field-selector status.phase=Running -o jsonpath='{.items[*].spec.nodeName}' | tr ' ' '\n' | sort -u | paste -sd' ')"; }

sandbox() { kubectl -n vendor exec deploy/billing -c sandbox -- /usher sandbox "$@"; }

# reconciles NAME WANT: a run of the CronJob, its condition.
reconciles() {
	kubectl create job --from=cronjob/usher-reconcile "$1"
	eventually 120 ended "$1"
	kubectl logs "job/$1" -c reconcile
	is "$2" "$(kubectl get "job/$1" -o json | jq -r '.status.conditions[].type | select(. == "Complete" or . == "Failed")')"
}

try_reconcile() {
	apply reconcile.yaml
	sandbox send acme users=5
	reconciles same Complete
	kubectl logs job/same -c reconcile | grep 'Nothing differs'
}

try_reconcile_lost() {
	sandbox send acme users=6 --lost
	reconciles lost Failed
	kubectl logs job/lost -c reconcile | grep 'users 5 → 6'
	is 1 "$(kubectl get pods -l job-name=lost -o name | wc -l)"
	is 3 "$(kubectl get pods -l job-name=lost -o jsonpath='{.items[0].status.containerStatuses[0].state.terminated.exitCode}')"
}

try_reconcile_schedule() {
	sandbox send acme users=6
	kubectl patch cronjob usher-reconcile -p '{"spec": {"schedule": "* * * * *"}}'
	eventually 150 scheduled >/dev/null
	kubectl patch cronjob usher-reconcile -p '{"spec": {"suspend": true}}'
}

# Its own Jobs have a number in their name; those that were made by hand count for its status, too.
scheduled() {
	kubectl get jobs -o json | jq -e '.items[] | select((.metadata.name | test("^usher-reconcile-[0-9]+$")) and .status.succeeded == 1) | .metadata.name'
}

# under_load SECONDS COMMAND... runs the command while webhooks come in. Its figures go to the table.
under_load() {
	local seconds=$1
	shift
	load -for "${seconds}s" >"$work/load" 2>&1 &
	local loading=$!
	trap wait EXIT # after a failure, too: the next claim has a load of its own
	sleep 5
	"$@"
	kill -0 $loading || { echo "the load was over before"; cat "$work/load"; return 1; }
	if ! wait $loading; then cat "$work/load"; return 1; fi
	note "$(grep webhooks: "$work/load" | sed 's/; calls.*//')"
}

update() {
	kubectl rollout restart deployment/usher-gateway
	ready deployment/usher-gateway
}

try_rolling_update() {
	under_load 90 update
	spread
}

drain() {
	kubectl drain node2 --ignore-daemonsets --delete-emptydir-data --timeout=120s
	ready deployment/usher-gateway
}

try_drain() {
	local before
	before=$(kubectl get pods -l app.kubernetes.io/name=usher-gateway --field-selector spec.nodeName=node2 -o name)
	[ -n "$before" ] || { echo "no replica is on node2"; return 1; }
	under_load 90 drain
}

# --- The chart -----------------------------------------------------------------------------------------------------------------

# What it makes of its documented values is in deploy/helm/testdata, for a release billing-usher in a namespace billing; deploy/chart_test.go
# compares that with what Helm says. The proxy, the image's digest and Prometheus' operator are examples. OpenShift would choose the ids.
chart() {
	awk 'BEGIN {RS = "---\n"} !/kind: PodMonitor/ {printf "---\n%s", $0}' "$top/deploy/helm/testdata/$1.yaml" |
		sed -E -e 's/my-client-id/demo/; s/@sha256:[0-9a-f]+/:v0.1.0/; /name: HTTPS_PROXY/,+1d' |
		if [ "$1" = file-entitlements ]; then sed -E 's/^( +)fsGroupChangePolicy: .*/&\n\1fsGroup: 1000650000\n\1runAsUser: 1000650000/'; else cat; fi
}

try_chart() {
	local namespace=billing name
	for name in usher billing-webhooks; do
		secret $name webhook-token=$webhook_token forward-signing-key=$forward_signing_key admin-token=admin-token-of-the-trial inbox-password=inbox-password-of-the-trial \
			admin-read-token=read-token-of-the-trial entitlements-key=entitlements-key-of-the-trial client-secret=demo-secret outbound-key=outbound-key-of-the-trial
	done
	secret db-app "uri=postgres://usher:inbox-password-of-the-trial@db-rw.postgres.svc/usher?sslmode=require"
	kubectl -n billing create configmap db-ca --from-file=ca.crt="$work/pki/ca.crt" --dry-run=client -o yaml | kubectl apply -f -
	quiet kubectl -n billing apply --validate=strict -f <(chart "$1")
	for name in $(kubectl -n billing get deployments,statefulsets -o name); do ready -n billing "$name"; done
	"chart_$1"
}

try_helm() {
	local install=(-n billing --wait --timeout 180s --set image.repository=registry.example.com/usher --set receiver.url=http://provisioning.default.svc:3000/provisioning)
	quiet helm install usher "$top/deploy/helm/usher" "${install[@]}"
	sends usher
	quiet helm upgrade usher "$top/deploy/helm/usher" "${install[@]}" --set settings.USHER_LOG_LEVEL=debug
	kubectl -n billing exec statefulset/usher -- /usher inbox ls | grep delivered # what the inbox had before
	sends usher
	helm uninstall usher -n billing --wait
	eventually 60 left persistentvolumeclaim/inbox-usher-0
}

left() { is "$1" "$(kubectl -n billing get all,pvc,configmap,secret,pdb,networkpolicy,serviceaccount -l app.kubernetes.io/instance=usher -o name)"; }

# A volume as a cluster gives it: there is nobody here who would make one.
volume() {
	mkdir -p "$work/volumes/$1"
	kubectl apply -f - <<-END
		apiVersion: v1
		kind: PersistentVolume
		metadata: {name: volume-$1}
		spec:
		  capacity: {storage: 4Gi}
		  accessModes: [ReadWriteOnce]
		  local: {path: $work/volumes/$1}
		  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node1]}]}]}}
	END
}

chart_file() { sends billing-usher; }

chart_file-entitlements() {
	sends billing-gateway
	tell billing-gateway
	may billing-gateway-entitlements
}

chart_postgres() {
	sends billing-usher
	tell billing-usher
	may billing-usher-entitlements
	calls billing-usher-outbound
	kubectl -n billing exec deployment/billing-usher-outbound -- /usher check
}

# sends SERVICE: webhooks to it arrive, once kube-proxy knows the Service. Before that nobody answers a connection, nor refuses it.
sends() { gate=$1.billing.svc eventually 60 load -for 2s -patience 10s; }

# may SERVICE: it says what acme may use, which a gate was told.
may() {
	local url=http://$1.billing.svc:8070/v1/entitlements/acme
	is 401 "$(get "$url")"
	eventually 10 answered "$url"
}

answered() { is 200 "$(get "$1" "X-Usher-Key: entitlements-key-of-the-trial")"; }

tell() {
	is 200 "$(post '{"type":"TenantProvisioningChange","payload":{"tenant":{"id":1,"code":"acme","name":"A","platform":{"id":1,"code":"crm","name":"CRM"}},
		"change":{"features":[{"code":"users","name":"Users","quantity":7}],"subscriptions":[]}}}' "http://$1.billing.svc:8090/webhooks" "Authorization: Bearer $webhook_token")"
}

calls() {
	local url=http://$1.billing.svc:8080/graphql query='{"query": "{ accounts(filter: \"\", limit: 1) { id } }"}'
	is 401 "$(post "$query" "$url")"
	is 200 "$(post "$query" "$url" "X-Usher-Key: outbound-key-of-the-trial")"
}
