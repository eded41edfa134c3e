"""What the Python client sees of the server whose kubeconfig is named on the command line. Exits with 0 when all is as promised."""

import sys

from kubernetes import client, config, watch

config.load_kube_config(sys.argv[1])
core = client.CoreV1Api()


def config_map(name, **data):
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name), data=data)


# Lists have the namespaces every cluster has.
names = [namespace.metadata.name for namespace in core.list_namespace().items]
assert "default" in names and "kube-system" in names, names
assert client.VersionApi().get_code().minor == "36"

# What is created can be read, patched and refused.
made = core.create_namespaced_config_map("default", config_map("first", a="b"))
assert made.metadata.uid and made.data == {"a": "b"}, made
patched = core.patch_namespaced_config_map("first", "default", {"data": {"a": "c"}})
assert patched.data == {"a": "c"} and patched.metadata.uid == made.metadata.uid, patched
try:
    core.create_namespaced_config_map("default", config_map("first"))
    raise AssertionError("a second object of the same name was accepted")
except client.ApiException as refused:
    assert refused.status == 409 and "AlreadyExists" in refused.body, refused

# A watch from a list misses nothing and repeats nothing.
since = core.list_namespaced_config_map("default").metadata.resource_version
core.create_namespaced_config_map("default", config_map("second"))
core.patch_namespaced_config_map("second", "default", {"data": {"k": "v"}})
core.delete_namespaced_config_map("second", "default")
seen = []
for event in watch.Watch().stream(core.list_namespaced_config_map, "default", resource_version=since, timeout_seconds=60):
    seen.append((event["type"], event["object"].metadata.name))
    if event["type"] == "DELETED":
        break
assert seen == [("ADDED", "second"), ("MODIFIED", "second"), ("DELETED", "second")], seen
