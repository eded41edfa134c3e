package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
	"k8s.io/client-go/util/retry"
)

var typedChecks = []check{
	{"objects are made, read, changed and deleted", objectsLiveAndDie},
	{"a stale write is a conflict and a retry ends it", staleWritesConflict},
	{"every content type tells the same", contentTypesTellTheSame},
	{"lists come in pages", listsComeInPages},
	{"patches of every type", patchesOfEveryType},
	{"scale and status are parts of their own", partsOfTheirOwn},
	{"finalizers hold an object back", finalizersHoldBack},
	{"collections are deleted by selector", collectionsAreDeleted},
	{"dry runs leave nothing behind", dryRunsLeaveNothing},
}

var isAlreadyThere = apierrors.IsAlreadyExists

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"check": name}},
		Data:       map[string]string{"k": value},
	}
}

func deployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "app:1"}}},
			},
		},
	}
}

func objectsLiveAndDie(ctx context.Context, w *world) error {
	maps := w.client.CoreV1().ConfigMaps(w.namespace)
	made, err := maps.Create(ctx, configMap("life", "1"), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = maps.Create(ctx, configMap("life", "1"), metav1.CreateOptions{})
	if err := refused("a second of the same name", err, apierrors.IsAlreadyExists); err != nil {
		return err
	}
	made.Data["k"] = "2"
	changed, err := maps.Update(ctx, made, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	read, err := maps.Get(ctx, "life", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := wanted("value", read.Data["k"], "2"); err != nil {
		return err
	}
	if err := wanted("version read", read.ResourceVersion, changed.ResourceVersion); err != nil {
		return err
	}
	uid := types.UID("another")
	err = maps.Delete(ctx, "life", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if err := refused("deleting another object of the name", err, apierrors.IsConflict); err != nil {
		return err
	}
	if err := maps.Delete(ctx, "life", metav1.DeleteOptions{}); err != nil {
		return err
	}
	_, err = maps.Get(ctx, "life", metav1.GetOptions{})
	return refused("reading what is gone", err, apierrors.IsNotFound)
}

// patiently retries until nobody can be in the way any more: every conflict means that somebody else was done.
var patiently = wait.Backoff{Steps: 100, Duration: 2 * time.Millisecond, Factor: 1.2, Jitter: 0.5, Cap: 100 * time.Millisecond}

// Every writer reads, adds one and writes; what is lost would show in the sum.
func staleWritesConflict(ctx context.Context, w *world) error {
	maps := w.client.CoreV1().ConfigMaps(w.namespace)
	if _, err := maps.Create(ctx, configMap("counter", "0"), metav1.CreateOptions{}); err != nil {
		return err
	}
	const writers, each = 4, 5
	failures := make(chan error, writers)
	for range writers {
		go func() {
			for range each {
				err := retry.RetryOnConflict(patiently, func() error {
					read, err := maps.Get(ctx, "counter", metav1.GetOptions{})
					if err != nil {
						return err
					}
					count, err := strconv.Atoi(read.Data["k"])
					if err != nil {
						return err
					}
					read.Data["k"] = strconv.Itoa(count + 1)
					_, err = maps.Update(ctx, read, metav1.UpdateOptions{})
					return err
				})
				if err != nil {
					failures <- err
					return
				}
			}
			failures <- nil
		}()
	}
	for range writers {
		if err := <-failures; err != nil {
			return err
		}
	}
	read, err := maps.Get(ctx, "counter", metav1.GetOptions{})
	if err != nil {
		return err
	}
	return wanted("sum of all writers", read.Data["k"], strconv.Itoa(writers*each))
}

func contentTypesTellTheSame(ctx context.Context, w *world) error {
	for _, contentType := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON} {
		config := rest.CopyConfig(w.config)
		config.ContentType, config.AcceptContentTypes = contentType, contentType
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		name := "by-" + contentType[len(contentType)-4:]
		if _, err := client.AppsV1().Deployments(w.namespace).Create(ctx, deployment(name, 3), metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("%s: %w", contentType, err)
		}
		read, err := client.AppsV1().Deployments(w.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("%s: %w", contentType, err)
		}
		if err := wanted(contentType+": image", read.Spec.Template.Spec.Containers[0].Image, "app:1"); err != nil {
			return err
		}
		if err := wanted(contentType+": a default", string(read.Spec.Strategy.Type), "RollingUpdate"); err != nil {
			return err
		}
		list, err := client.AppsV1().Deployments(w.namespace).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil {
			return fmt.Errorf("%s: %w", contentType, err)
		}
		if err := wanted(contentType+": listed", len(list.Items), 1); err != nil {
			return err
		}
	}
	return nil
}

func listsComeInPages(ctx context.Context, w *world) error {
	maps := w.client.CoreV1().ConfigMaps(w.namespace)
	const all = 25
	for i := range all {
		object := configMap(fmt.Sprintf("page-%02d", i), "1")
		object.Labels = map[string]string{"paged": "yes"}
		if _, err := maps.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	pages := 0
	lists := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		pages++
		return maps.List(ctx, options)
	})
	lists.PageSize = 10
	seen := 0
	err := lists.EachListItem(ctx, metav1.ListOptions{LabelSelector: "paged=yes"}, func(runtime.Object) error {
		seen++
		return nil
	})
	if err != nil {
		return err
	}
	if err := wanted("items", seen, all); err != nil {
		return err
	}
	return wanted("pages", pages, 3)
}

func patchesOfEveryType(ctx context.Context, w *world) error {
	deployments := w.client.AppsV1().Deployments(w.namespace)
	if _, err := deployments.Create(ctx, deployment("patched", 1), metav1.CreateOptions{}); err != nil {
		return err
	}
	for _, patch := range []struct {
		kind types.PatchType
		body string
	}{
		{types.StrategicMergePatchType, `{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"side:1"}]}}}}`},
		{types.MergePatchType, `{"metadata":{"annotations":{"note":"merged"}}}`},
		{types.JSONPatchType, `[{"op":"replace","path":"/spec/replicas","value":4}]`},
	} {
		if _, err := deployments.Patch(ctx, "patched", patch.kind, []byte(patch.body), metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("%s: %w", patch.kind, err)
		}
	}
	read, err := deployments.Get(ctx, "patched", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := wanted("containers", len(read.Spec.Template.Spec.Containers), 2); err != nil {
		return err
	}
	if err := wanted("annotation", read.Annotations["note"], "merged"); err != nil {
		return err
	}
	return wanted("replicas", *read.Spec.Replicas, 4)
}

func partsOfTheirOwn(ctx context.Context, w *world) error {
	deployments := w.client.AppsV1().Deployments(w.namespace)
	made, err := deployments.Create(ctx, deployment("scaled", 1), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "scaled", Namespace: w.namespace}, Spec: autoscalingv1.ScaleSpec{Replicas: 7}}
	if _, err := deployments.UpdateScale(ctx, "scaled", scale, metav1.UpdateOptions{}); err != nil {
		return err
	}
	_, err = deployments.UpdateStatus(ctx, made, metav1.UpdateOptions{})
	if err := refused("a stale status", err, apierrors.IsConflict); err != nil {
		return err
	}
	read, err := deployments.Get(ctx, "scaled", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := wanted("replicas", *read.Spec.Replicas, 7); err != nil {
		return err
	}
	patch := []byte(`{"status":{"conditions":[{"type":"Checked","status":"True"}]},"spec":{"replicas":1}}`)
	after, err := deployments.Patch(ctx, "scaled", types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return err
	}
	return wanted("replicas after a write of the status", *after.Spec.Replicas, 7)
}

func finalizersHoldBack(ctx context.Context, w *world) error {
	maps := w.client.CoreV1().ConfigMaps(w.namespace)
	held := configMap("held", "1")
	held.Finalizers = []string{"example.dev/hold"}
	if _, err := maps.Create(ctx, held, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := maps.Delete(ctx, "held", metav1.DeleteOptions{}); err != nil {
		return err
	}
	read, err := maps.Get(ctx, "held", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := wanted("it is going", read.DeletionTimestamp != nil, true); err != nil {
		return err
	}
	if _, err := maps.Patch(ctx, "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		return err
	}
	_, err = maps.Get(ctx, "held", metav1.GetOptions{})
	return refused("reading what is let go", err, apierrors.IsNotFound)
}

func collectionsAreDeleted(ctx context.Context, w *world) error {
	secrets := w.client.CoreV1().Secrets(w.namespace)
	for i := range 4 {
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("secret-%d", i), Labels: map[string]string{"half": strconv.Itoa(i % 2)}},
			StringData: map[string]string{"key": "value"},
		}
		if _, err := secrets.Create(ctx, secret, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if err := secrets.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "half=0"}); err != nil {
		return err
	}
	left, err := secrets.List(ctx, metav1.ListOptions{LabelSelector: "half"})
	if err != nil {
		return err
	}
	if err := wanted("left", len(left.Items), 2); err != nil {
		return err
	}
	return wanted("value", string(left.Items[0].Data["key"]), "value")
}

func dryRunsLeaveNothing(ctx context.Context, w *world) error {
	maps := w.client.CoreV1().ConfigMaps(w.namespace)
	made, err := maps.Create(ctx, configMap("dry", "1"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return err
	}
	if err := wanted("it looks made", made.UID != "", true); err != nil {
		return err
	}
	_, err = maps.Get(ctx, "dry", metav1.GetOptions{})
	return refused("reading what was not made", err, apierrors.IsNotFound)
}
