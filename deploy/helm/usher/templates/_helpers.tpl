{{- define "usher.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The labels of all pods of a release. Those of one workload have a component, too. */}}
{{- define "usher.selector" -}}
app.kubernetes.io/name: usher
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "usher.labels" -}}
{{ include "usher.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end -}}

{{/* What runs: the gate, if it has somewhere to put webhooks, and an inbox for it and for entitlements. Empty: it does not. */}}
{{- define "usher.gate" -}}
{{- if and .Values.gate.enabled (or .Values.receiver.url .Values.receivers .Values.entitlements.enabled) -}}on{{- end -}}
{{- end -}}

{{- define "usher.inbox" -}}
{{- if or (include "usher.gate" .) .Values.entitlements.enabled -}}{{ .Values.inbox.type }}{{- end -}}
{{- end -}}

{{/*
The workloads, by their component, as YAML. Each part of usher has its own, so that what takes one part out of its Service leaves the
others in theirs. Only an inbox in a file has one pod for the gate and entitlements. That pod has no second one to which webhooks
could go instead, so entitlements decide whether it is ready: with a broken file they are still answered from memory.
*/}}
{{- define "usher.workloads" -}}
{{- $name := include "usher.fullname" . -}}
{{- $file := eq (include "usher.inbox" .) "file" -}}
{{- $both := and $file .Values.entitlements.enabled -}}
{{- if include "usher.gate" . }}
gate:
  name: {{ $name }}
  kind: {{ ternary "StatefulSet" "Deployment" $file }}
  parts: {{ ternary (list "gate" "entitlements") (list "gate") $both | toJson }}
  ready: {{ ternary "entitlements" "gate" $both }}
  replicas: {{ ternary 1 (.Values.gate.replicas | default 2) $file }}
{{- end }}
{{- if and .Values.entitlements.enabled (not $file) }}
entitlements:
  name: {{ $name }}-entitlements
  kind: Deployment
  parts: [entitlements]
  ready: entitlements
  replicas: {{ .Values.entitlements.replicas }}
{{- end }}
{{- if .Values.outbound.baseURL }}
outbound:
  name: {{ $name }}-outbound
  kind: Deployment
  parts: [outbound]
  ready: outbound
  replicas: {{ .Values.outbound.replicas }}
{{- end }}
{{- end -}}

{{/* Values that each are fine, and together make an usher that does not start, or one that loses webhooks. */}}
{{- define "usher.check" -}}
{{- $gate := include "usher.gate" . -}}
{{- $inbox := include "usher.inbox" . -}}
{{- $keys := .Values.secret.keys -}}
{{- $postgres := .Values.inbox.postgres -}}
{{- if and (or .Values.receiver.url .Values.receivers) (not $gate) -}}
{{- fail "gate.enabled is false: receiver.url and receivers would get no webhooks" -}}
{{- end -}}
{{- if not (or $gate .Values.entitlements.enabled .Values.outbound.baseURL) -}}
{{- fail "nothing to run: set receiver.url for webhooks, entitlements.enabled for entitlements, or outbound.baseURL for calls to the billing service" -}}
{{- end -}}
{{- if and $gate (not (or $keys.webhookToken $keys.signingKey)) -}}
{{- fail "secret.keys needs webhookToken or signingKey: the gate must be able to check who sent a webhook" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not $gate) -}}
{{- fail "ingress.enabled is for webhooks: set receiver.url" -}}
{{- end -}}
{{- if and .Values.entitlements.enabled (not $keys.entitlementsKey) -}}
{{- fail "secret.keys.entitlementsKey is missing: beyond loopback, entitlements need a key" -}}
{{- end -}}
{{- if and .Values.entitlements.enabled (not $gate) (ne $inbox "postgres") -}}
{{- fail "gate.enabled is false: entitlements then need inbox.type postgres, which another usher fills" -}}
{{- end -}}
{{- if and (eq $inbox "file") (gt (int (.Values.gate.replicas | default 1)) 1) -}}
{{- fail "gate.replicas: an inbox in a file is for one replica. With more, a change could be dropped as a duplicate: use inbox.type postgres" -}}
{{- end -}}
{{- if and (eq $inbox "postgres") (eq (empty $postgres.url) (empty $postgres.secret.name)) -}}
{{- fail "inbox.postgres needs its address: set url or secret.name, and not both" -}}
{{- end -}}
{{- if and .Values.outbound.baseURL (not (and .Values.outbound.clientID $keys.clientSecret $keys.outboundKey)) -}}
{{- fail "outbound.baseURL needs outbound.clientID, secret.keys.clientSecret and secret.keys.outboundKey" -}}
{{- end -}}
{{- if and .Values.podMonitor.enabled (not $keys.adminReadToken) -}}
{{- fail "podMonitor.enabled needs secret.keys.adminReadToken: Prometheus must not get the token of those who may act" -}}
{{- end -}}
{{- range $part, $w := include "usher.workloads" . | fromYaml -}}
{{- if and (gt (int $w.replicas) 1) (ge (int (index $.Values $part).minAvailable) (int $w.replicas)) -}}
{{- fail (printf "%s.minAvailable must be less than its replicas: otherwise no node with usher on it can be drained" $part) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "usher.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* The environment of a workload: one list, so that all settings of usher are in one place. */}}
{{- define "usher.env" -}}
{{- $parts := .workload.parts -}}
{{- with .root -}}
{{- $secret := "/run/secrets/usher" -}}
{{- $keys := .Values.secret.keys -}}
{{- $hosts := list -}}
{{- if has "outbound" $parts }}
- {name: USHER_BASE_URL, value: {{ .Values.outbound.baseURL | quote }}}
- {name: USHER_CLIENT_ID, value: {{ .Values.outbound.clientID | quote }}}
- {name: USHER_CLIENT_SECRET_FILE, value: {{ printf "%s/%s" $secret $keys.clientSecret | quote }}}
- {name: USHER_LISTEN, value: "0.0.0.0:8080"}
- {name: USHER_KEY_FILE, value: {{ printf "%s/%s" $secret $keys.outboundKey | quote }}}
{{- end }}
{{- if has "gate" $parts }}
- {name: USHER_WEBHOOK_LISTEN, value: "0.0.0.0:8090"}
{{- with .Values.receiver.url }}
- {name: USHER_WEBHOOK_FORWARD_URL, value: {{ . | quote }}}
{{- end }}
{{- range $i, $r := .Values.receivers }}
- {name: USHER_WEBHOOK_RECEIVERS_{{ $i }}_NAME, value: {{ $r.name | quote }}}
- {name: USHER_WEBHOOK_RECEIVERS_{{ $i }}_PLATFORMS, value: {{ join "," $r.platforms | quote }}}
- {name: USHER_WEBHOOK_RECEIVERS_{{ $i }}_FORWARD_URL, value: {{ $r.url | quote }}}
{{- end }}
{{- with $keys.webhookToken }}
- {name: USHER_WEBHOOK_TOKEN_FILE, value: {{ printf "%s/%s" $secret . | quote }}}
{{- end }}
{{- with $keys.signingKey }}
- {name: USHER_WEBHOOK_SIGNING_KEY_FILE, value: {{ printf "%s/%s" $secret . | quote }}}
{{- end }}
{{- if and $keys.forwardSigningKey (or .Values.receiver.url .Values.receivers) }}
- {name: USHER_WEBHOOK_FORWARD_SIGNING_KEY_FILE, value: {{ printf "%s/%s" $secret $keys.forwardSigningKey | quote }}}
{{- end }}
{{- else if has "entitlements" $parts }}
- {name: USHER_WEBHOOK_LISTEN, value: "off"}
{{- end }}
{{- if has "outbound" $parts }}
{{- else if eq .Values.inbox.type "file" }}
- {name: USHER_WEBHOOK_INBOX, value: "file:/var/lib/usher/inbox.db"}
{{- else }}
{{- with .Values.inbox.postgres.url }}
- {name: USHER_WEBHOOK_INBOX, value: {{ . | quote }}}
{{- with $keys.inboxPassword }}
- {name: USHER_WEBHOOK_INBOX_PASSWORD_FILE, value: {{ printf "%s/%s" $secret . | quote }}}
{{- end }}
{{- else }}
- {name: USHER_WEBHOOK_INBOX, valueFrom: {secretKeyRef: {name: {{ .Values.inbox.postgres.secret.name | quote }}, key: {{ .Values.inbox.postgres.secret.key | quote }}}}}
{{- end }}
{{- end }}
{{- if has "entitlements" $parts }}
- {name: USHER_ENTITLEMENTS_LISTEN, value: "0.0.0.0:8070"}
- {name: USHER_ENTITLEMENTS_KEY_FILE, value: {{ printf "%s/%s" $secret $keys.entitlementsKey | quote }}}
{{- end }}
{{- /* The names by which the Services are called. */}}
{{- range without $parts "gate" }}
{{- $name := printf "%s-%s" (include "usher.fullname" $.root) . }}
{{- $namespace := $.root.Release.Namespace }}
{{- $hosts = concat $hosts (list $name (printf "%s.%s" $name $namespace) (printf "%s.%s.svc" $name $namespace) (printf "%s.%s.svc.cluster.local" $name $namespace)) }}
{{- end }}
{{- with .Values.settings.USHER_ALLOWED_HOSTS }}
{{- $hosts = append $hosts . }}
{{- end }}
{{- if $hosts }}
- {name: USHER_ALLOWED_HOSTS, value: {{ join "," $hosts | quote }}}
{{- end }}
# For Prometheus and the probes; /healthz and /readyz need no token, the rest does.
- {name: USHER_ADMIN_LISTEN, value: "0.0.0.0:9095"}
- {name: USHER_ADMIN_TOKEN_FILE, value: {{ printf "%s/%s" $secret $keys.adminToken | quote }}}
{{- with $keys.adminReadToken }}
- {name: USHER_ADMIN_READ_TOKEN_FILE, value: {{ printf "%s/%s" $secret . | quote }}}
{{- end }}
- {name: USHER_SHUTDOWN_DELAY, value: "{{ .Values.shutdown.delay }}s"}
- {name: USHER_SHUTDOWN_GRACE, value: "{{ .Values.shutdown.grace }}s"}
- {name: USHER_LOG_FORMAT, value: json}
{{- /* A setting of another part would be a warning in the log. */}}
{{- range $name, $value := omit .Values.settings "USHER_ALLOWED_HOSTS" }}
{{- $part := "outbound" }}
{{- if hasPrefix "USHER_WEBHOOK_" $name }}{{ $part = "gate" }}
{{- else if hasPrefix "USHER_ENTITLEMENTS_" $name }}{{ $part = "entitlements" }}
{{- else if regexMatch "^USHER_(ADMIN|LOG)_" $name }}{{ $part = first $parts }}
{{- end }}
{{- if has $part $parts }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end -}}
