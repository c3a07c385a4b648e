{{/* Each part is given a dict: root (the chart's context), part (indexer, router or
     publisher), c (its values), name (of its objects), program, port, settings. */}}

{{- define "kvatlas.name" -}}
{{ printf "%s-%s" (.root.Release.Name | trunc 40 | trimSuffix "-") .name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "kvatlas.selector" -}}
app.kubernetes.io/name: kvatlas
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end }}

{{- define "kvatlas.labels" -}}
{{ include "kvatlas.selector" . }}
app.kubernetes.io/version: {{ .root.Values.image.tag | default .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: kvatlas
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "kvatlas.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (printf "%s-kvatlas" (.Release.Name | trunc 40 | trimSuffix "-")) }}
{{- end }}

{{/* The settings of a program: the chart's own, then those of the values. */}}
{{- define "kvatlas.settings" -}}
{{- $v := .root.Values }}
{{- $own := dict
  (ternary "http-listen" "admin-listen" (has .part (list "indexer" "router"))) (printf "0.0.0.0:%d" (int .port))
  "log-format" "json"
  "stop-timeout" (printf "%ds" (int .c.stopTimeoutSeconds)) }}
{{- if ne .part "discover" }}
  {{- $_ := set $own "nats" (required "nats.url: say where NATS with JetStream is" $v.nats.url) }}
  {{- $_ := set $own "namespace" $v.namespace }}
  {{- $_ := set $own "data-dir" "/var/lib/kvatlas" }}
{{- end }}
{{- if include "kvatlas.natsUser" . }}{{ $_ := set $own "nats-creds" "/etc/kvatlas/nats/creds" }}{{ end }}
{{- if include "kvatlas.natsCA" . }}{{ $_ := set $own "nats-ca" "/etc/kvatlas/nats-ca/ca.crt" }}{{ end }}
{{- if and $v.access.clientCASecret (not $v.access.tlsSecret) }}
  {{- fail "access.clientCASecret: give tlsSecret too; without TLS nobody shows a certificate" }}
{{- end }}
{{- if has .part (list "indexer" "router") }}{{ $_ := set $own "drain-delay" (printf "%ds" (int .c.drainDelaySeconds)) }}{{ end }}
{{- if $v.access.tokensSecret }}
  {{- $_ := set $own "tokens-file" "/etc/kvatlas/access/tokens.yaml" }}
{{- else if $v.access.allowAnonymous }}
  {{- $_ := set $own "allow-anonymous" true }}
{{- else if not $v.access.clientCASecret }}
  {{- fail "access: give tokensSecret, or clientCASecret, or allowAnonymous: true if something else keeps strangers out" }}
{{- end }}
{{- if $v.access.tlsSecret }}
  {{- $_ := set $own "tls-cert" "/etc/kvatlas/tls/tls.crt" }}
  {{- $_ := set $own "tls-key" "/etc/kvatlas/tls/tls.key" }}
{{- end }}
{{- if $v.access.clientCASecret }}
  {{- $_ := set $own "tls-client-ca" "/etc/kvatlas/client-ca/ca.crt" }}
  {{- $_ := set $own "probe-listen" "0.0.0.0:8099" }}
{{- end }}
{{- $all := mergeOverwrite $own (deepCopy .settings) }}
{{- if contains "@" ($all.nats | default "" | toString) }}
  {{- fail "nats.url: no user or password goes into a ConfigMap; give nats.credentialsSecret" }}
{{- end }}
{{- $names := .root.Files.Get "files/settings.yaml" | fromYaml }}
{{- $known := index $names .program }}
{{- range $name, $value := .settings }}
  {{- if has $name $names.secret }}
    {{- fail (printf "%s: %s is a secret, and this goes into a ConfigMap; give its variable in env, from a Secret (docs/configuration.md has the name)" $.program $name) }}
  {{- end }}
  {{- if regexMatch "://[^/@ ,]*@" (toString $value) }}
    {{- fail (printf "%s: %s: no user or password of a URL goes into a ConfigMap; give its variable in env, from a Secret" $.program $name) }}
  {{- end }}
  {{- if not (has $name $known) }}
    {{- fail (printf "%s has no setting %q: docs/configuration.md has all of them" $.program $name) }}
  {{- end }}
{{- end }}
{{- $all | toYaml }}
{{- end }}

{{/* The secret with a part's NATS user: its own, or that of all. */}}
{{- define "kvatlas.natsUser" -}}
{{ if ne .part "discover" }}{{ .c.natsCredentialsSecret | default .root.Values.nats.credentialsSecret }}{{ end }}
{{- end }}

{{- define "kvatlas.natsCA" -}}
{{ if ne .part "discover" }}{{ .root.Values.nats.caSecret }}{{ end }}
{{- end }}

{{/* Where the kubelet asks. It has no certificate to show: then at a port of its own. */}}
{{- define "kvatlas.probe" -}}
{{- $a := .root.Values.access -}}
httpGet: {path: {{ .path }}, port: {{ ternary "probes" "http" (not (empty $a.clientCASecret)) }}{{ if and $a.tlsSecret (not $a.clientCASecret) }}, scheme: HTTPS{{ end }}}
{{- end }}

{{- define "kvatlas.image" -}}
{{- $i := .Values.image -}}
{{ if $i.digest }}{{ printf "%s@%s" $i.repository $i.digest }}{{ else }}{{ printf "%s:%s" $i.repository ($i.tag | default .Chart.AppVersion) }}{{ end }}
{{- end }}

{{- define "kvatlas.pod" -}}
{{- $v := .root.Values -}}
metadata:
  labels:
    {{- include "kvatlas.labels" . | nindent 4 }}
    {{- with .c.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    checksum/settings: {{ include "kvatlas.settings" . | sha256sum }}
    {{- with .c.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  {{- if .asks }}
  serviceAccountName: {{ include "kvatlas.name" . }}
  automountServiceAccountToken: true # it asks Kubernetes
  {{- else }}
  serviceAccountName: {{ include "kvatlas.serviceAccount" .root }}
  automountServiceAccountToken: false
  {{- end }}
  enableServiceLinks: false
  # What the programs give themselves, and some seconds for the rest.
  terminationGracePeriodSeconds: {{ add (.c.drainDelaySeconds | default 0 | int) (int .c.stopTimeoutSeconds) 10 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    seccompProfile: {type: RuntimeDefault}
  {{- with $v.imagePullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ .program }}
      image: {{ include "kvatlas.image" .root | quote }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      command: [{{ printf "/%s" .program | quote }}]
      env:
        - {name: KVATLAS_CONFIG, value: {{ printf "/etc/kvatlas/settings/%s.yaml" .program }}}
        {{- if ne .part "discover" }}
        - {name: TMPDIR, value: /var/lib/kvatlas} # snapshots that are read and long bodies: the root is read-only
        {{- end }}
        {{- with .c.env }}{{ toYaml . | nindent 8 }}{{ end }}
      ports:
        - {name: http, containerPort: {{ .port }}}
        {{- range .c.extraPorts }}
        - {name: {{ .name }}, containerPort: {{ .port }}}
        {{- end }}
        {{- if $v.access.clientCASecret }}
        - {name: probes, containerPort: 8099}
        {{- end }}
      # A start that is slow, as with a large snapshot, is no reason to kill it.
      startupProbe:
        {{ include "kvatlas.probe" (dict "root" .root "path" "/livez") }}
        periodSeconds: 2
        failureThreshold: {{ max 1 (div (int .c.startTimeoutSeconds) 2) }}
      livenessProbe:
        {{ include "kvatlas.probe" (dict "root" .root "path" "/livez") }}
        periodSeconds: 10
        failureThreshold: 6
      readinessProbe:
        {{- if and (dig "picker" "enabled" false .c) (not $v.access.tlsSecret) }}
        grpc: {port: {{ .c.picker.port }}, service: readiness} # says the same as /readyz, where gateways ask
        {{- else }}
        {{ include "kvatlas.probe" (dict "root" .root "path" "/readyz") }}
        {{- end }}
        periodSeconds: 2
        failureThreshold: 1
      resources: {{ toYaml .c.resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        {{- if ne .part "discover" }}
        - {name: data, mountPath: /var/lib/kvatlas}
        {{- end }}
        - {name: settings, mountPath: /etc/kvatlas/settings, readOnly: true}
        {{- if include "kvatlas.natsUser" . }}
        - {name: nats, mountPath: /etc/kvatlas/nats, readOnly: true}
        {{- end }}
        {{- if include "kvatlas.natsCA" . }}
        - {name: nats-ca, mountPath: /etc/kvatlas/nats-ca, readOnly: true}
        {{- end }}
        {{- if $v.access.tokensSecret }}
        - {name: access, mountPath: /etc/kvatlas/access, readOnly: true}
        {{- end }}
        {{- if $v.access.tlsSecret }}
        - {name: tls, mountPath: /etc/kvatlas/tls, readOnly: true}
        {{- end }}
        {{- if $v.access.clientCASecret }}
        - {name: client-ca, mountPath: /etc/kvatlas/client-ca, readOnly: true}
        {{- end }}
        {{- if and (eq .part "discover") $v.access.caSecret }}
        - {name: ca, mountPath: /etc/kvatlas/ca, readOnly: true}
        {{- end }}
        {{- if .c.tokenSecret }}
        - {name: register, mountPath: /etc/kvatlas/register, readOnly: true}
        {{- end }}
        {{- with .c.extraVolumeMounts }}{{ toYaml . | nindent 8 }}{{ end }}
  volumes:
    {{- if not (or (eq .part "discover") (dig "persistence" "enabled" false .c)) }}
    - {name: data, emptyDir: {}}
    {{- end }}
    - {name: settings, configMap: {name: {{ include "kvatlas.name" . }}}}
    {{- with include "kvatlas.natsUser" . }}
    - {name: nats, secret: {secretName: {{ . | quote }}}}
    {{- end }}
    {{- with include "kvatlas.natsCA" . }}
    - {name: nats-ca, secret: {secretName: {{ . | quote }}}}
    {{- end }}
    {{- if $v.access.tokensSecret }}
    - {name: access, secret: {secretName: {{ $v.access.tokensSecret | quote }}}}
    {{- end }}
    {{- if $v.access.tlsSecret }}
    - {name: tls, secret: {secretName: {{ $v.access.tlsSecret | quote }}}}
    {{- end }}
    {{- with $v.access.clientCASecret }}
    - {name: client-ca, secret: {secretName: {{ . | quote }}}}
    {{- end }}
    {{- if and (eq .part "discover") $v.access.caSecret }}
    - {name: ca, secret: {secretName: {{ $v.access.caSecret | quote }}}}
    {{- end }}
    {{- with .c.tokenSecret }}
    - {name: register, secret: {secretName: {{ . | quote }}}}
    {{- end }}
    {{- with .c.extraVolumes }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with .c.nodeSelector }}
  nodeSelector: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .c.tolerations }}
  tolerations: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- if .c.affinity }}
  affinity: {{ toYaml .c.affinity | nindent 4 }}
  {{- else if gt (int .replicas) 1 }}
  affinity: # replicas are not to be lost together
    podAntiAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
        - weight: 100
          podAffinityTerm:
            topologyKey: kubernetes.io/hostname
            labelSelector:
              matchLabels: {{ include "kvatlas.selector" . | nindent 16 }}
  {{- end }}
  {{- with .c.topologySpreadConstraints }}
  topologySpreadConstraints: {{ toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* A program's settings, its service and its disruption budget. */}}
{{- define "kvatlas.around" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "kvatlas.name" . }}
  labels: {{ include "kvatlas.labels" . | nindent 4 }}
data:
  {{ .program }}.yaml: |
    {{- include "kvatlas.settings" . | nindent 4 }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ include "kvatlas.name" . }}
  labels: {{ include "kvatlas.labels" . | nindent 4 }}
  {{- with .c.service }}{{ with .annotations }}
  annotations: {{ toYaml . | nindent 4 }}
  {{- end }}{{ end }}
spec:
  {{- if .c.service }}
  type: {{ .c.service.type }}
  {{- else }}
  clusterIP: None
  {{- end }}
  selector: {{ include "kvatlas.selector" . | nindent 4 }}
  ports:
    - {name: http, port: {{ dig "service" "port" .port .c }}, targetPort: http}
    {{- range .c.extraPorts }}
    - {name: {{ .name }}, port: {{ .port }}, targetPort: {{ .name }}{{ with .appProtocol }}, appProtocol: {{ . | quote }}{{ end }}}
    {{- end }}
{{- if .root.Values.networkPolicy.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "kvatlas.name" . }}
  labels: {{ include "kvatlas.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{ include "kvatlas.selector" . | nindent 6 }}
  policyTypes: [Ingress]
  ingress:
    - ports:
        - {port: http, protocol: TCP}
        {{- range .c.extraPorts }}
        - {port: {{ .name }}, protocol: TCP}
        {{- end }}
      {{- with .root.Values.networkPolicy.from }}
      from:
        {{- toYaml . | nindent 8 }}
        - podSelector: # the chart's own parts ask each other
            matchLabels: {app.kubernetes.io/name: kvatlas, app.kubernetes.io/instance: {{ $.root.Release.Name | quote }}}
      {{- end }}
{{- end }}
{{- if and (dig "podDisruptionBudget" "enabled" false .c) (gt (int .replicas) 1) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "kvatlas.name" . }}
  labels: {{ include "kvatlas.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .c.podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels: {{ include "kvatlas.selector" . | nindent 6 }}
{{- end }}
{{- end }}

{{/* The account of a part that asks Kubernetes, and what it may: the rules in .asks. */}}
{{- define "kvatlas.account" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "kvatlas.name" . }}
  labels: {{ include "kvatlas.labels" . | nindent 4 }}
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ include "kvatlas.name" . }}
  labels: {{ include "kvatlas.labels" . | nindent 4 }}
rules:
  {{- range .asks }}
  - {{ toJson . }}
  {{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ include "kvatlas.name" . }}
  labels: {{ include "kvatlas.labels" . | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ include "kvatlas.name" . }}}
subjects: [{kind: ServiceAccount, name: {{ include "kvatlas.name" . }}, namespace: {{ .root.Release.Namespace }}}]
{{- end }}

{{/* A set of pods that keep their data. */}}
{{- define "kvatlas.statefulSet" -}}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ include "kvatlas.name" . }}
  labels: {{ include "kvatlas.labels" . | nindent 4 }}
spec:
  serviceName: {{ include "kvatlas.name" . }}
  replicas: {{ .replicas }}
  podManagementPolicy: Parallel
  selector:
    matchLabels: {{ include "kvatlas.selector" . | nindent 6 }}
  template:
    {{- include "kvatlas.pod" . | nindent 4 }}
  {{- if .c.persistence.enabled }}
  volumeClaimTemplates:
    - metadata: {name: data}
      spec:
        accessModes: [ReadWriteOnce]
        {{- with .c.persistence.storageClass }}
        storageClassName: {{ . | quote }}
        {{- end }}
        resources: {requests: {storage: {{ .c.persistence.size }}}}
  {{- end }}
{{- end }}
