{{- define "image-service.fullname" -}}
{{ .Values.fullnameOverride | default .Release.Name }}
{{- end }}

{{- define "image-service.name" -}}
{{ .Values.nameOverride | default .Chart.Name }}
{{- end }}

{{- define "image-service.selector" -}}
app.kubernetes.io/name: {{ include "image-service.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The jobs role, its workers and the load test: pods of other names, which the Service of images does not select. */}}
{{- define "image-service.jobsSelector" -}}
app.kubernetes.io/name: {{ include "image-service.name" . }}-jobs
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "image-service.workerSelector" -}}
app.kubernetes.io/name: {{ include "image-service.name" . }}-worker
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "image-service.loadTestSelector" -}}
app.kubernetes.io/name: {{ include "image-service.name" . }}-loadtest
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "image-service.moreLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "image-service.labels" -}}
{{ include "image-service.selector" . }}
{{ include "image-service.moreLabels" . }}
{{- end }}

{{- define "image-service.jobsLabels" -}}
{{ include "image-service.jobsSelector" . }}
{{ include "image-service.moreLabels" . }}
{{- end }}

{{- define "image-service.workerLabels" -}}
{{ include "image-service.workerSelector" . }}
{{ include "image-service.moreLabels" . }}
{{- end }}

{{- define "image-service.loadTestLabels" -}}
{{ include "image-service.loadTestSelector" . }}
{{ include "image-service.moreLabels" . }}
{{- end }}

{{- /* Snapshots are in PostgreSQL, so that any replica serves any image. */}}
{{- define "image-service.isShared" -}}
{{ if .Values.secrets.database }}true{{ end }}
{{- end }}

{{- /* The Secret with the token of the administrative port: that of the values, or the chart's own. */}}
{{- define "image-service.adminSecret" -}}
{{ .Values.secrets.admin | default (printf "%s-admin" (include "image-service.fullname" .)) }}
{{- end }}

{{- /* The size of /data in GiB: its parts, a tenth, and 1 GiB for temporary files. */}}
{{- define "image-service.dataGiB" -}}
{{- $storage := .Values.storage }}
{{- $snapshots := ternary 0 $storage.snapshotsGiB (eq (include "image-service.isShared" .) "true") }}
{{- $sum := add $storage.imagesGiB $storage.remoteGiB $snapshots }}
{{- add $sum (div (add $sum 9) 10) 1 }}
{{- end }}

{{- define "image-service.bytes" -}}
{{ mul . 1073741824 | quote }}
{{- end }}

{{- /* The directory of a file that a variable names. */}}
{{- define "image-service.directory" -}}
/etc/image-service/{{ include "image-service.volume" . }}
{{- end }}
{{- define "image-service.volume" -}}
{{ . | lower | replace "_" "-" }}
{{- end }}

{{- define "image-service.image" -}}
{{ with .Values.image }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}{{ end }}
{{- end }}

{{- /* The common part of all pods. */}}
{{- define "image-service.pod" -}}
serviceAccountName: {{ include "image-service.fullname" . }}
automountServiceAccountToken: false
# Variables that Kubernetes would add for Services could have the names of settings.
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  {{- if ne .Values.fsGroup nil }}
  fsGroup: {{ .Values.fsGroup }}
  fsGroupChangePolicy: OnRootMismatch
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "image-service.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Variables of `settings`: a text, or the source of one. A later file of values removes one by null. */}}
{{- define "image-service.settings" -}}
{{- range $name, $value := . }}
{{- if kindIs "map" $value }}
- name: {{ $name }}
  valueFrom: {{- toYaml $value.valueFrom | nindent 4 }}
{{- else if ne $value nil }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{- /* Variables that name a file of a ConfigMap, with mounts and volumes. */}}
{{- define "image-service.files" -}}
{{- range $name, $source := . }}
{{- if $source }}
- {name: {{ $name }}, value: {{ include "image-service.directory" $name }}/{{ $source.key }}}
{{- end }}
{{- end }}
{{- end }}
{{- define "image-service.fileMounts" -}}
{{- range $name, $source := . }}
{{- if $source }}
- {name: {{ include "image-service.volume" $name }}, mountPath: {{ include "image-service.directory" $name }}, readOnly: true}
{{- end }}
{{- end }}
{{- end }}
{{- define "image-service.fileVolumes" -}}
{{- range $name, $source := . }}
{{- if $source }}
- name: {{ include "image-service.volume" $name }}
  configMap:
    name: {{ $source.configMap }}
    items: [{key: {{ $source.key }}, path: {{ $source.key }}}]
{{- end }}
{{- end }}
{{- end }}

{{- /* On loopback for `kubectl port-forward`, and at the pod's address for Prometheus. */}}
{{- define "image-service.adminVariables" -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- {name: ADMIN_LISTEN, value: "127.0.0.1:8081,$(POD_IP):8081"}
- {name: ADMIN_TOKEN_FILE, value: /etc/image-service/admin/token}
{{- end }}

{{- define "image-service.s3Variables" -}}
{{- with .Values.secrets.s3 }}
- name: AWS_ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: {{ . }}, key: AWS_ACCESS_KEY_ID}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ . }}, key: AWS_SECRET_ACCESS_KEY}}
- name: AWS_SESSION_TOKEN
  valueFrom: {secretKeyRef: {name: {{ . }}, key: AWS_SESSION_TOKEN, optional: true}}
{{- end }}
{{- end }}

{{- define "image-service.registryVariables" -}}
{{- if .Values.secrets.registry }}
- {name: REGISTRY_AUTH_FILE, value: /etc/image-service/registry/auth.json}
{{- end }}
{{- end }}
{{- define "image-service.registryMounts" -}}
{{- if .Values.secrets.registry }}
- {name: registry, mountPath: /etc/image-service/registry, readOnly: true}
{{- end }}
{{- end }}
{{- define "image-service.registryVolumes" -}}
{{- with .Values.secrets.registry }}
- name: registry
  secret: {secretName: {{ . }}, defaultMode: 0440, items: [{key: .dockerconfigjson, path: auth.json}]}
{{- end }}
{{- end }}

{{- /* How Prometheus reads the metrics of a pod: all pods have the certificate and the token of the service. */}}
{{- define "image-service.metricsEndpoint" -}}
port: admin
path: /metrics
{{- if .Values.secrets.tls }}
scheme: https
{{- if .Values.serviceMonitor.tlsConfig }}
tlsConfig: {{- toYaml .Values.serviceMonitor.tlsConfig | nindent 2 }}
{{- else if .Values.service.servingCertificate }}
tlsConfig:
  serverName: {{ include "image-service.fullname" . }}.{{ .Release.Namespace }}.svc
  ca: {configMap: {name: openshift-service-ca.crt, key: service-ca.crt}}
{{- end }}
{{- end }}
authorization:
  credentials: {name: {{ include "image-service.adminSecret" . }}, key: token}
{{- end }}
