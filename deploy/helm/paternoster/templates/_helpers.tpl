{{- define "paternoster.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{/* Leaves room for the suffix of the headless service within the 63 characters of a name. */}}
{{- define "paternoster.fullname" -}}
{{- $name := include "paternoster.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- .Values.fullnameOverride | default $full | trunc 54 | trimSuffix "-" -}}
{{- end }}

{{- define "paternoster.selectorLabels" -}}
app.kubernetes.io/name: {{ include "paternoster.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "paternoster.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "paternoster.selectorLabels" . }}
app.kubernetes.io/component: server
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "paternoster.image" -}}
{{- if .Values.image.digest -}}
{{ printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end -}}
{{- end }}

{{- define "paternoster.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "paternoster.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end }}

{{/* clear text HTTP/2 has a protocol name of its own; proxies take "https" as HTTP over TLS */}}
{{- define "paternoster.grpcProtocol" -}}
{{- ternary "https" "kubernetes.io/h2c" (not (empty .Values.tls.secretName)) -}}
{{- end }}

{{/* "https" or "http" */}}
{{- define "paternoster.httpProtocol" -}}
{{- ternary "https" "http" (and (not (empty .Values.tls.secretName)) .Values.tls.http) -}}
{{- end }}

{{/*
Seconds from SIGTERM to SIGKILL. The server serves on for the drain delay, then gives requests in flight the exit
timeout, then a running scrape 1 s and programs 5 s to stop; the rest is slack.
*/}}
{{- define "paternoster.terminationGracePeriodSeconds" -}}
{{- add .Values.server.drainDelaySecs .Values.server.exitTimeoutSecs 10 -}}
{{- end }}

{{/* the flags that values set */}}
{{- define "paternoster.ownArgs" -}}
{{- $server := .Values.server -}}
- serve
{{- if eq .Values.modelRepository.source "objectStore" }}
- --model-repository={{ .Values.modelRepository.objectStore.url }}
- --repository-cache-directory={{ .Values.modelRepository.mountPath }}
{{- else }}
- --model-repository={{ .Values.modelRepository.mountPath }}
{{- end }}
- --model-control-mode={{ $server.modelControlMode }}
{{- if has $server.modelControlMode (list "poll" "on-demand") }}
- --repository-poll-secs={{ $server.repositoryPollSecs | int64 }}
{{- end }}
{{- range $server.loadModels }}
- {{ printf "--load-model=%s" . | quote }}
{{- end }}
- --strict-readiness={{ $server.strictReadiness }}
- --grpc-port={{ $server.ports.grpc | int64 }}
- --http-port={{ $server.ports.http | int64 }}
- --metrics-port={{ $server.ports.metrics | int64 }}
- --drain-delay-secs={{ $server.drainDelaySecs | int64 }}
- --exit-timeout-secs={{ $server.exitTimeoutSecs | int64 }}
- --log-verbose={{ $server.logVerbose | int64 }}
- --log-format={{ $server.logFormat }}
- --profile-directory=/var/cache/paternoster
{{- if .Values.tls.secretName }}
- --grpc-use-ssl=true
- --grpc-server-cert=/etc/paternoster/tls/tls.crt
- --grpc-server-key=/etc/paternoster/tls/tls.key
{{- if .Values.tls.mutual }}
- --grpc-use-ssl-mutual=true
- --grpc-root-cert=/etc/paternoster/tls/ca.crt
{{- end }}
{{- end }}
{{- if eq (include "paternoster.httpProtocol" .) "https" }}
- --http-use-ssl=true
- --http-server-cert=/etc/paternoster/tls/tls.crt
- --http-server-key=/etc/paternoster/tls/tls.key
{{- if .Values.tls.mutual }}
- --http-use-ssl-mutual=true
- --http-root-cert=/etc/paternoster/tls/ca.crt
{{- end }}
{{- end }}
{{- end }}

{{- define "paternoster.args" -}}
{{- $own := include "paternoster.ownArgs" . -}}
{{ $own }}
{{- range .Values.server.extraArgs }}
{{- $flag := regexFind "^--[a-z0-9-]+" . }}
{{- if regexMatch (printf "(?m)%s(=|$)" $flag) $own }}
{{- fail (printf "server.extraArgs: %s is set by the chart from another value, which README.md names" $flag) }}
{{- end }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* sources of variables: the credentials of an object store, and those of the values */}}
{{- define "paternoster.envFrom" -}}
{{- $sources := .Values.envFrom -}}
{{- if eq .Values.modelRepository.source "objectStore" -}}
{{- with .Values.modelRepository.objectStore.secretName -}}
{{- $sources = prepend $sources (dict "secretRef" (dict "name" .)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $sources -}}
{{- end }}

{{- define "paternoster.modelVolume" -}}
{{- $repository := .Values.modelRepository -}}
- name: models
{{- if eq $repository.source "pvc" }}
  persistentVolumeClaim:
    {{- /* Not in the schema: the chart must pass "helm lint" with its default values. */}}
    claimName: {{ required "modelRepository.pvc.claimName: expected the name of a claim" $repository.pvc.claimName }}
    readOnly: true
{{- else if eq $repository.source "image" }}
  image:
    reference: {{ $repository.image.reference }}
    pullPolicy: {{ $repository.image.pullPolicy }}
{{- else if has $repository.source (list "initContainer" "objectStore") }}
  {{- with (get $repository $repository.source).sizeLimit }}
  emptyDir:
    sizeLimit: {{ . }}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- else }}
  {{- toYaml $repository.volume | nindent 2 }}
{{- end }}
{{- end }}

{{/* requests and limits, with the devices added to the limits */}}
{{- define "paternoster.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- if .Values.gpu.count -}}
{{- $devices := dict .Values.gpu.resourceName (.Values.gpu.count | int64) -}}
{{- $_ := set $resources "limits" (merge $devices (default dict $resources.limits)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end }}
