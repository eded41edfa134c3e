{{/* What objects of an operator are called and found by. In: dict "root" and "name". */}}
{{- define "bellerophon.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: bellerophon
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{/* What finds the pods of an operator; it never changes. In: dict "root" and "name". */}}
{{- define "bellerophon.selector" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}
