"""Checks a server through the Python client. The argument is a kubeconfig. Exits with 0 on success."""

import sys

from kubernetes import client, config, watch

config.load_kube_config(sys.argv[1])
core = client.CoreV1Api()


def config_map(name, **data):
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name), data=data)


# The namespaces of every cluster exist.
names = [namespace.metadata.name for namespace in core.list_namespace().items]
assert "default" in names and "kube-system" in names, names
assert client.VersionApi().get_code().minor == "36"

# A created object can be patched; a second one of the same name is rejected.
created = core.create_namespaced_config_map("default", config_map("first", a="b"))
assert created.metadata.uid and created.data == {"a": "b"}, created
patched = core.patch_namespaced_config_map("first", "default", {"data": {"a": "c"}})
assert patched.data == {"a": "c"} and patched.metadata.uid == created.metadata.uid, patched
try:
    core.create_namespaced_config_map("default", config_map("first"))
    raise AssertionError("a second object of the same name was accepted")
except client.ApiException as error:
    assert error.status == 409 and "AlreadyExists" in error.body, error

# A watch from the resource version of a list delivers every event once.
version = core.list_namespaced_config_map("default").metadata.resource_version
core.create_namespaced_config_map("default", config_map("second"))
core.patch_namespaced_config_map("second", "default", {"data": {"k": "v"}})
core.delete_namespaced_config_map("second", "default")
events = []
for event in watch.Watch().stream(core.list_namespaced_config_map, "default", resource_version=version, timeout_seconds=60):
    events.append((event["type"], event["object"].metadata.name))
    if event["type"] == "DELETED":
        break
assert events == [("ADDED", "second"), ("MODIFIED", "second"), ("DELETED", "second")], events
