{{- define "usher.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "usher.selector" -}}
app.kubernetes.io/name: usher
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "usher.labels" -}}
{{ include "usher.selector" . }}
app.kubernetes.io/component: gateway
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end -}}

{{- define "usher.replicas" -}}
{{- if eq .Values.inbox.type "file" -}}1{{- else -}}{{ .Values.replicas | default 2 }}{{- end -}}
{{- end -}}

{{- define "usher.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* The environment: one list, so that what usher is told can be read in one place. */}}
{{- define "usher.env" -}}
{{- $secret := "/run/secrets/usher" -}}
{{- $keys := .Values.secret.keys -}}
- {name: USHER_WEBHOOK_LISTEN, value: "0.0.0.0:8090"}
- {name: USHER_WEBHOOK_FORWARD_URL, value: {{ .Values.receiver.url | quote }}}
{{- range $i, $r := .Values.receivers }}
- {name: USHER_WEBHOOK_RECEIVERS_{{ $i }}_NAME, value: {{ $r.name | quote }}}
- {name: USHER_WEBHOOK_RECEIVERS_{{ $i }}_PLATFORMS, value: {{ join "," $r.platforms | quote }}}
- {name: USHER_WEBHOOK_RECEIVERS_{{ $i }}_FORWARD_URL, value: {{ $r.url | quote }}}
{{- end }}
{{- with $keys.webhookToken }}
- {name: USHER_WEBHOOK_TOKEN_FILE, value: {{ printf "%s/%s" $secret . | quote }}}
{{- end }}
{{- with $keys.hmacSecret }}
- {name: USHER_WEBHOOK_HMAC_SECRET_FILE, value: {{ printf "%s/%s" $secret . | quote }}}
{{- end }}
{{- with $keys.signSecret }}
- {name: USHER_WEBHOOK_SIGN_SECRET_FILE, value: {{ printf "%s/%s" $secret . | quote }}}
{{- end }}
{{- if eq .Values.inbox.type "file" }}
- {name: USHER_WEBHOOK_INBOX, value: "file:/var/lib/usher/inbox.db"}
{{- else }}
- {name: USHER_WEBHOOK_INBOX, value: {{ .Values.inbox.nats.url | quote }}}
{{- with .Values.inbox.nats.user }}
- {name: USHER_WEBHOOK_INBOX_USER, value: {{ . | quote }}}
{{- end }}
{{- with $keys.natsPassword }}
- {name: USHER_WEBHOOK_INBOX_PASSWORD_FILE, value: {{ printf "%s/%s" $secret . | quote }}}
{{- end }}
{{- end }}
{{- $hosts := list }}
{{- if .Values.entitlements.enabled }}
- {name: USHER_ENTITLEMENTS_LISTEN, value: "0.0.0.0:8070"}
- {name: USHER_ENTITLEMENTS_KEY_FILE, value: {{ printf "%s/%s" $secret $keys.entitlementsKey | quote }}}
{{- /* The names by which the Service is called. */}}
{{- $name := printf "%s-entitlements" (include "usher.fullname" .) }}
{{- $hosts = list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) (printf "%s.%s.svc.cluster.local" $name .Release.Namespace) }}
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
- {name: USHER_SHUTDOWN_DELAY, value: "{{ .Values.shutdown.delay }}s"}
- {name: USHER_SHUTDOWN_GRACE, value: "{{ .Values.shutdown.grace }}s"}
- {name: USHER_LOG_FORMAT, value: json}
{{- range $name, $value := omit .Values.settings "USHER_ALLOWED_HOSTS" }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end -}}
