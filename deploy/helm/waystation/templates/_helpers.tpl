{{- define "waystation.name" -}}
{{- if contains "waystation" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-waystation{{ end }}
{{- end }}

{{- define "waystation.deployment" -}}
{{ .Values.versioning.deploymentName | default (include "waystation.name" .) }}
{{- end }}

{{/* The name of the objects of one role and build: (list $ "activities" "2026-11-23"). */}}
{{- define "waystation.buildName" -}}
{{- $root := index . 0 }}
{{- $name := printf "%s-%s" (include "waystation.name" $root) (index . 1) }}
{{- if $root.Values.versioning.enabled }}
{{- $name = printf "%s-%s" $name (regexReplaceAll "[^a-z0-9]+" (lower (index . 2)) "-" | trimAll "-") }}
{{- end }}
{{- if gt (len $name) 52 }}{{ fail (printf "The name %q has more than 52 characters. Use a shorter release name or tag." $name) }}{{ end }}
{{- $name }}
{{- end }}

{{- define "waystation.selector" -}}
app.kubernetes.io/name: waystation
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- if and (index . 2) (index . 0).Values.versioning.enabled }}
waystation/build: {{ index . 2 | quote }}
{{- end }}
{{- end }}

{{- define "waystation.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "waystation.env" -}}
- {name: TEMPORAL_ADDRESS, value: {{ .Values.temporal.address | quote }}}
- {name: TEMPORAL_NAMESPACE, value: {{ .Values.temporal.namespace | quote }}}
{{- if .Values.temporal.tls }}
- {name: TEMPORAL_TLS, value: "true"}
{{- end }}
{{- with .Values.temporal.apiKeySecret }}
- name: TEMPORAL_API_KEY
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: apiKey}}
{{- end }}
- {name: WAYSTATION_STORE, value: {{ .Values.stores.payloads | quote }}}
{{- with .Values.files.encryptionKeys }}
{{- $_ := required "files.secret is required: the secret that has the file of files.encryptionKeys" $.Values.files.secret }}
- {name: WAYSTATION_ENCRYPTION_KEYS, value: /etc/waystation/{{ . }}}
{{- end }}
{{- range $name, $value := .Values.env }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- define "waystation.envFrom" -}}
{{- range .Values.envSecrets }}
- secretRef: {name: {{ . | quote }}}
{{- end }}
{{- end }}

{{/* What all pods have: no privileges, a read-only file system, a folder for temporary files. */}}
{{- define "waystation.pod" -}}
automountServiceAccountToken: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
volumes:
  - name: home
    emptyDir: {}
  - name: tmp
    emptyDir: {}
{{- with .Values.files.secret }}
  - name: files
    secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "waystation.container" -}}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: home, mountPath: /var/lib/waystation}
  - {name: tmp, mountPath: /tmp}
{{- if .Values.files.secret }}
  - {name: files, mountPath: /etc/waystation, readOnly: true}
{{- end }}
{{- end }}

{{/* A job that Helm runs and waits for: (dict "root" $ "name" "check" "hook" "pre-upgrade" "container" YAML). */}}
{{- define "waystation.job" -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ include "waystation.name" .root }}-{{ .name }}
  labels:
    {{- include "waystation.selector" (list .root .name "") | nindent 4 }}
    {{- include "waystation.labels" .root | nindent 4 }}
  annotations:
    helm.sh/hook: {{ .hook }}
    helm.sh/hook-delete-policy: before-hook-creation
spec:
  backoffLimit: 2
  activeDeadlineSeconds: 900
  template:
    metadata:
      labels: {{ include "waystation.selector" (list .root .name "") | nindent 8 }}
    spec:
      restartPolicy: Never
      {{- include "waystation.pod" .root | nindent 6 }}
      containers:
        - name: {{ .name }}
          {{- include "waystation.container" .root | nindent 10 }}
          {{- .container | nindent 10 }}
          env: {{ include "waystation.env" .root | nindent 12 }}
          {{- if .root.Values.envSecrets }}
          envFrom: {{ include "waystation.envFrom" .root | trim | nindent 12 }}
          {{- end }}
{{- end }}

{{- define "waystation.annotations" -}}
{{- $annotations := dict }}
{{- if .Values.metrics.annotate }}
{{- $_ := set $annotations "prometheus.io/scrape" "true" }}
{{- $_ := set $annotations "prometheus.io/port" (toString .Values.metrics.port) }}
{{- $_ := set $annotations "prometheus.io/path" "/metrics" }}
{{- end }}
{{- toYaml (mergeOverwrite $annotations .Values.podAnnotations) }}
{{- end }}

{{/* The port of metrics, and probes. Liveness needs only the event loop: a restart helps neither Temporal nor a store. */}}
{{- define "waystation.probes" }}
  - {name: metrics, containerPort: {{ .Values.metrics.port }}}
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  timeoutSeconds: 10
  periodSeconds: 15
{{- end }}
