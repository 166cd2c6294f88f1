{{- define "image-service.selector" -}}
app.kubernetes.io/name: image-service
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "image-service.labels" -}}
{{ include "image-service.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- /* Snapshots are in PostgreSQL, so that any replica serves any image. */}}
{{- define "image-service.isShared" -}}
{{ if .Values.secrets.database }}true{{ end }}
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

{{- /* The jobs role and its workers: pods of other names, which the Service of images does not select. */}}
{{- define "image-service.jobsSelector" -}}
app.kubernetes.io/name: image-service-jobs
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "image-service.workerSelector" -}}
app.kubernetes.io/name: image-service-worker
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "image-service.image" -}}
{{ with .Values.image }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}{{ end }}
{{- end }}

{{- /* The common part of all pods of the jobs role. */}}
{{- define "image-service.jobsPod" -}}
serviceAccountName: {{ .Release.Name }}
automountServiceAccountToken: false
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
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
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

{{- /* How Prometheus reads the metrics of a pod: all pods have the certificate and the token of the service. */}}
{{- define "image-service.metricsEndpoint" -}}
path: /metrics
{{- if .Values.secrets.tls }}
scheme: https
{{- if .Values.serviceMonitor.tlsConfig }}
tlsConfig: {{- toYaml .Values.serviceMonitor.tlsConfig | nindent 2 }}
{{- else if .Values.service.servingCertificate }}
tlsConfig:
  serverName: {{ .Release.Name }}.{{ .Release.Namespace }}.svc
  ca: {configMap: {name: openshift-service-ca.crt, key: service-ca.crt}}
{{- end }}
{{- end }}
{{- with .Values.secrets.admin }}
authorization:
  credentials: {name: {{ . }}, key: token}
{{- end }}
{{- end }}
