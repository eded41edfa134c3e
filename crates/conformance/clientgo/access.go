package main

import (
	"context"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
)

var accessChecks = []check{
	{"a token of a service account opens what its role allows", tokenOpensWhatIsAllowed},
	{"an impersonated user has its own rights", impersonatedUserHasItsRights},
	{"recorded events are stored and counted", recordedEventsAreStored},
	{"a pod is evicted through its own path", podIsEvicted},
}

func tokenOpensWhatIsAllowed(ctx context.Context, w *world) error {
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list"}}},
	}
	if _, err := w.client.RbacV1().Roles(w.namespace).Create(ctx, role, metav1.CreateOptions{}); err != nil {
		return err
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "default", Namespace: w.namespace}},
	}
	if _, err := w.client.RbacV1().RoleBindings(w.namespace).Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return err
	}
	request := &authenticationv1.TokenRequest{}
	token, err := w.client.CoreV1().ServiceAccounts(w.namespace).CreateToken(ctx, "default", request, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	config := rest.AnonymousClientConfig(w.config)
	config.BearerToken = token.Status.Token
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().ConfigMaps(w.namespace).List(ctx, metav1.ListOptions{}); err != nil {
		return err
	}
	_, err = client.CoreV1().Secrets(w.namespace).List(ctx, metav1.ListOptions{})
	if err := refused("what the role does not allow", err, apierrors.IsForbidden); err != nil {
		return err
	}
	config.BearerToken = "nonsense"
	stranger, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	_, err = stranger.CoreV1().ConfigMaps(w.namespace).List(ctx, metav1.ListOptions{})
	return refused("a token of nobody", err, apierrors.IsUnauthorized)
}

func impersonatedUserHasItsRights(ctx context.Context, w *world) error {
	config := rest.CopyConfig(w.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "ann"}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	_, err = client.CoreV1().ConfigMaps(w.namespace).List(ctx, metav1.ListOptions{})
	if err := refused("what ann may not", err, apierrors.IsForbidden); err != nil {
		return err
	}
	who, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if err := wanted("user", who.Status.UserInfo.Username, "ann"); err != nil {
		return err
	}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: w.namespace, Verb: "list", Resource: "configmaps"},
	}}
	answer, err := w.client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return wanted("whether the administrator may", answer.Status.Allowed, true)
}

func recordedEventsAreStored(ctx context.Context, w *world) error {
	subject, err := w.client.CoreV1().ConfigMaps(w.namespace).Create(ctx, configMap("subject", "1"), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(sink{w})
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "clientgo"})
	for range 3 {
		recorder.Event(subject, corev1.EventTypeNormal, "Checked", "looked at it")
	}
	return until(ctx, "the event counts to three", func() (bool, error) {
		events, err := w.client.CoreV1().Events(w.namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=subject"})
		if err != nil {
			return false, err
		}
		return len(events.Items) == 1 && events.Items[0].Count == 3, nil
	})
}

// sink stores recorded events.
type sink struct{ w *world }

func (s sink) Create(event *corev1.Event) (*corev1.Event, error) {
	return s.w.client.CoreV1().Events(event.Namespace).Create(context.Background(), event, metav1.CreateOptions{})
}

func (s sink) Update(event *corev1.Event) (*corev1.Event, error) {
	return s.w.client.CoreV1().Events(event.Namespace).Update(context.Background(), event, metav1.UpdateOptions{})
}

func (s sink) Patch(event *corev1.Event, patch []byte) (*corev1.Event, error) {
	return s.w.client.CoreV1().Events(event.Namespace).PatchWithEventNamespace(event, patch)
}

func podIsEvicted(ctx context.Context, w *world) error {
	now := int64(0)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "evicted"},
		Spec: corev1.PodSpec{
			Containers:                    []corev1.Container{{Name: "main", Image: "app:1"}},
			TerminationGracePeriodSeconds: &now,
		},
	}
	pods := w.client.CoreV1().Pods(w.namespace)
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return err
	}
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "evicted", Namespace: w.namespace}}
	if err := pods.EvictV1(ctx, eviction); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return until(ctx, "the pod is gone", func() (bool, error) {
		_, err := pods.Get(ctx, "evicted", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}
