{{/* The labels of all objects of an operator. Argument: dict "root" and "name". */}}
{{- define "bellerophon.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: bellerophon
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{/* The selector of an operator's pods, which is immutable. Argument: dict "root" and "name". */}}
{{- define "bellerophon.selector" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}
