"""What each value of the chart means and may be: the source of its schema and of its table.

Defaults live in `triptych/values.yaml`. `python helm/generate.py` writes
`triptych/values.schema.json` and the table of `triptych/README.md` from this tree; a test fails
while they are out of step.
"""

# ruff: noqa: E501

from __future__ import annotations

from values_types import (
    ADDRESS,
    BYTES,
    HOST,
    NAME,
    OBJECT,
    PATH,
    POD,
    QUANTITY,
    SERVER,
    STAGE,
    STORE,
    URL,
    Schema,
    choice,
    flag,
    group,
    kubernetes,
    names,
    number,
    optional,
    quantity,
    text,
    texts,
    whole,
)


def stage(description: str) -> Schema:
    """A stage run by workers."""
    return group(description, STAGE)


VALUES: Schema = group(
    "Values of the chart.",
    {
        "global": {"type": "object", "description": "Helm's own; not used here."},
        "mode": choice(
            "`standalone`: a Deployment per stage, found through EndpointSlices. `ray`: a KubeRay "
            "RayService; its operator must be installed.",
            "standalone",
            "ray",
        ),
        "model": text(
            "Hugging Face name of the model, or an absolute path inside the container, or `demo` "
            "for the small model in the image. Required."
        ),
        "modelRevision": text("Branch, tag or commit to download; empty: the default branch."),
        "servedModelName": text("Name that clients use; empty: `model`."),
        "maxModelLen": whole("Tokens of context; 0: the model's."),
        "blockSize": whole("Tokens of a KV block; the same for all stages.", 1),
        "topology": choice(
            "Which stages there are. `epd`: encode, prefill, decode; `e-pd`: encode and "
            "prefillDecode; `all`: one kind of worker that does everything.",
            "epd",
            "e-pd",
            "all",
        ),
        "nameOverride": optional("Replaces the chart's name in names of objects.", OBJECT),
        "fullnameOverride": optional("Replaces release and chart name in names of objects.", OBJECT),
        "commonLabels": names("Labels of every object."),
        "image": group(
            "The image; deploy/docker has its Dockerfiles.",
            {
                "repository": text("Name of the image, with its registry.", r"^[^\s:@]+(:[0-9]+/[^\s:@]+)?$"),
                "tag": text("Tag; empty: the chart's appVersion, with `-cuda` where a GPU is used."),
                "digest": optional("Digest, instead of the tag.", r"^sha256:[0-9a-f]{64}$"),
                "pullPolicy": choice("When to pull.", "Always", "IfNotPresent", "Never"),
                "pullSecrets": texts("Names of secrets to pull with.", NAME),
            },
        ),
        "auth": group(
            "Secrets. Those that are not given are generated once and kept on upgrade.",
            {
                "existingSecret": optional(
                    "A secret of yours with the keys `cluster-token` and, if the API key is on, "
                    "`api-key`. Use it with tools that render without a cluster.",
                    NAME,
                ),
                "apiKey": group(
                    "The key that clients present.",
                    {
                        "enabled": flag("Ask clients for a key."),
                        "value": text("The key; empty: generated."),
                    },
                ),
                "clusterToken": group(
                    "The token that replicas present to each other.",
                    {"value": text("The token; empty: generated.")},
                ),
                "protectMetrics": flag("Ask for the API key on /metrics too."),
            },
        ),
        "enableScaleOut": flag("Open render, derender and generate on the serving endpoints."),
        "ports": group(
            "Ports of render and workers, inside the cluster. In mode ray 0 picks a free one, which then "
            "cannot be scraped.",
            {
                "http": whole("HTTP: health, metrics, scale-out endpoints.", 0, 65535),
                "grpc": whole("gRPC: calls of the coordinator.", 0, 65535),
                "exchange": whole("EC exchange: embeddings, pixels and KV.", 0, 65535),
            },
        ),
        "coordinator": group(
            "The front door.",
            {
                "port": whole("Port of its HTTP server.", 1024, 65535),
                "listenAddress": text("Address that it binds.", r"^[0-9a-fA-F.:]+$"),
                "requestTimeoutSeconds": whole("How long one request may take.", 1),
                "maxBodySize": text("Largest request body.", BYTES),
                "service": group(
                    "Its Service.",
                    {
                        "type": choice("Type of the Service.", "ClusterIP", "NodePort", "LoadBalancer"),
                        "port": whole("Port of the Service.", 1, 65535),
                        "annotations": names("Annotations of the Service."),
                    },
                ),
                **SERVER,
            },
        ),
        "render": group(
            "Everything before and after the model; never needs a GPU.",
            {
                "processes": whole("Processes that decode and prepare media; 0: one per core."),
                "allowedMediaDomains": texts("Hosts that media may be fetched from; empty: all "
                                             "public ones.", HOST),
                "allowPrivateAddresses": flag("Fetch media from private addresses too."),
                **STORE,
                **SERVER,
            },
        ),
        "stages": group(
            "The workers. Stages that `topology` does not name are not deployed.",
            {
                "encode": stage("Runs the vision tower and publishes embeddings."),
                "prefill": stage("Takes embeddings, fills KV blocks, samples the first token."),
                "decode": stage("Takes KV blocks and streams tokens."),
                "prefillDecode": stage("Prefill and decode in one (topology e-pd)."),
                "all": stage("Everything in one (topology all)."),
            },
        ),
        "ec": group(
            "The EC connector, which moves embeddings, pixels and KV blocks.",
            {
                "leaseSeconds": whole("How long a published item is held for its consumer.", 1),
                "transports": {
                    "type": "array",
                    "description": "Transports, best first; empty: all that are installed.",
                    "uniqueItems": True,
                    "items": {"enum": ["shm", "nixl", "ucx", "tcp"]},
                },
                "allowedHosts": texts("Hosts of peers that are not ours whose unsigned items are "
                                      "fetched."),
            },
        ),
        "drain": group(
            "How a replica leaves.",
            {
                "preStopSeconds": whole(
                    "Time between being taken out of the lists and the signal to stop. Longer than "
                    "`ec.leaseSeconds`, so that whatever was published can still be fetched.", 1),
                "streamSeconds": whole("Time after the signal for running streams to end.", 1),
            },
        ),
        "gpu": group(
            "GPUs.",
            {"resource": text("Resource name of a GPU.", r"^[a-z0-9.-]+/[A-Za-z0-9_.-]+$")},
        ),
        "rdma": group(
            "RDMA between workers.",
            {
                "enabled": flag("Give workers RDMA devices and locked memory."),
                "resource": text("Resource name of a device.", r"^[a-z0-9.-]+/[A-Za-z0-9_.-]+$"),
                "count": whole("Devices of a replica.", 1),
                "ipcLock": flag("Add the capability IPC_LOCK."),
                "hugepages": group(
                    "Huge pages of a replica.",
                    {
                        "pageSize": choice("Size of a page.", "2Mi", "1Gi"),
                        "size": quantity("Amount; empty: none."),
                    },
                ),
                "ucx": names("UCX's environment, for example UCX_NET_DEVICES."),
                "hostNetwork": flag("Use the node's network, for devices without a CNI plug-in."),
            },
        ),
        "modelCache": group(
            "Where weights are kept.",
            {
                "type": choice("`emptyDir`: per pod; `pvc`: a volume shared by all; `hostPath`: a "
                               "folder of the node.", "emptyDir", "pvc", "hostPath"),
                "path": text("Where it is mounted.", PATH),
                "download": flag("Download the model in an init container before the server "
                                 "starts."),
                "size": text("Size limit of the emptyDir, or size of the claim.", QUANTITY),
                "existingClaim": optional("A claim of yours, instead of a new one.", NAME),
                "storageClass": text("Storage class of the claim; empty: the default one."),
                "accessMode": choice("Access mode of the claim.", "ReadWriteMany", "ReadWriteOnce"),
                "hostPath": optional("Folder of the node.", PATH),
                "readOnly": flag("Mount it read-only; nothing is downloaded then."),
            },
        ),
        "huggingface": group(
            "The hub.",
            {
                "existingSecret": optional("A secret with the key `token`.", NAME),
                "endpoint": optional("A mirror of the hub.", URL),
            },
        ),
        "autoscaling": group(
            "How components are scaled in mode standalone.",
            {
                "kind": choice(
                    "`hpa`: HorizontalPodAutoscaler on CPU; `keda`: ScaledObject on our metrics in "
                    "Prometheus; KEDA must be installed.", "hpa", "keda"),
                "prometheusAddress": optional("Prometheus, for KEDA.", URL),
                "pollingSeconds": whole("How often KEDA asks.", 1),
                "cooldownSeconds": whole("How long load must stay low before pods are taken away.",
                                         0),
            },
        ),
        "networkPolicy": group(
            "Who may reach whom. Needs a network plug-in that enforces policies.",
            {
                "enabled": flag("Let only peers reach workers and the exchange."),
                "clients": kubernetes("Peers (NetworkPolicyPeer) that may reach the front door; "
                                      "empty: everyone.", "array"),
                "monitoring": kubernetes("Peers that may read /metrics; empty: every pod of the "
                                         "cluster.", "array"),
                "restrictEgress": flag("Limit outgoing connections too."),
            },
        ),
        "ingress": group(
            "An Ingress before the front door.",
            {
                "enabled": flag("Make an Ingress."),
                "className": text("Ingress class."),
                "host": optional("Host name.", HOST),
                "annotations": names("Annotations, for example for body size and time limits."),
                "tls": group("TLS.", {
                    "enabled": flag("Serve HTTPS."),
                    "secretName": optional("Secret with the certificate.", NAME),
                }),
            },
        ),
        "gateway": group(
            "Gateway API before the front door.",
            {
                "enabled": flag("Make an HTTPRoute."),
                "hostnames": texts("Host names of the route.", HOST),
                "parentRefs": kubernetes("Gateways that it attaches to, unless one is created.",
                                         "array"),
                "annotations": names("Annotations of the route."),
                "create": flag("Make a Gateway too, with a TLS listener."),
                "className": text("Gateway class of the one created."),
                "tlsSecretName": optional("Secret with the certificate of the one created.", NAME),
            },
        ),
        "monitoring": group(
            "Prometheus operator and Grafana.",
            {
                "podMonitor": flag("A PodMonitor for render and workers (mode ray: for Ray's own "
                                   "metrics)."),
                "serviceMonitor": flag("A ServiceMonitor for the coordinator."),
                "rules": flag("A PrometheusRule with our alerts."),
                "dashboard": flag("A ConfigMap with our Grafana dashboard."),
                "interval": text("Scrape interval.", r"^[0-9]+(ms|s|m)$"),
                "labels": names("Labels that your Prometheus selects by."),
                "dashboardLabels": names("Labels that your Grafana's sidecar selects by."),
                "queueAgeSeconds": number(
                    "Alert when requests wait longer than this for a replica of a stage (95th "
                    "percentile).",
                    0.001,
                    30,
                ),
            },
        ),
        "telemetry": group(
            "Logs and traces.",
            {
                "logLevel": choice("Least level that is logged.", "DEBUG", "INFO", "WARNING",
                                   "ERROR"),
                "otlpEndpoint": optional("OTLP collector for traces.", URL),
            },
        ),
        "security": group(
            "Identity of processes.",
            {
                "runAsUser": whole("User id of every process.", 1),
                "runAsGroup": whole("Group id of every process, and of its volumes.", 1),
            },
        ),
        "ray": group(
            "Mode ray.",
            {
                "version": text("Version of Ray in the image.", r"^[0-9]+\.[0-9]+\.[0-9]+$"),
                "head": group("The head, which runs no stage.", POD),
                "servePort": whole("Port of Serve's HTTP ingress.", 1024, 65535),
                "idleTimeoutSeconds": whole("After how long Ray's autoscaler takes an idle pod "
                                            "away.", 1),
                "redis": group(
                    "External Redis, so that the head's death loses no cluster state.",
                    {
                        "enabled": flag("Use the Redis named here."),
                        "address": optional("Address of Redis, host:port.", ADDRESS),
                        "existingSecret": optional("A secret with its password; empty: none.",
                                                   NAME),
                        "secretKey": text("Key in that secret."),
                    },
                ),
            },
        ),
        "test": group(
            "The `helm test` hook: sends a picture and checks the answer.",
            {
                "enabled": flag("Make the hook."),
                "question": text("What is asked about the picture of a red circle."),
                "expect": text("Regular expression that the answer must match, in any case."),
                "timeoutSeconds": whole("How long it tries.", 1),
            },
        ),
    },
)  # fmt: skip
