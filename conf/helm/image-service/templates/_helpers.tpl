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
