package envtest

import (
	"context"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"bellerophon/conformance/envtest/teams"
)

// warnings keeps the warnings of responses.
type warnings struct {
	mutex sync.Mutex
	texts []string
}

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.texts = append(w.texts, text)
}

func rules() []admissionv1.RuleWithOperations {
	return []admissionv1.RuleWithOperations{{
		Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
		Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
	}}
}

// webhooks are registered at a Service, as in manifests of a project; envtest replaces it by a URL.
func webhooks() envtest.WebhookInstallOptions {
	none := admissionv1.SideEffectClassNone
	fail := admissionv1.Fail
	service := func(path string) admissionv1.WebhookClientConfig {
		return admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "default", Name: "teams", Path: &path}}
	}
	kind := func(kind string) metav1.TypeMeta {
		return metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: kind}
	}
	return envtest.WebhookInstallOptions{
		MutatingWebhooks: []*admissionv1.MutatingWebhookConfiguration{{
			TypeMeta:   kind("MutatingWebhookConfiguration"),
			ObjectMeta: metav1.ObjectMeta{Name: "teams"},
			Webhooks: []admissionv1.MutatingWebhook{{
				Name: "default.teams.example.com", ClientConfig: service("/mutate--v1-configmap"), Rules: rules(),
				FailurePolicy: &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			}},
		}},
		ValidatingWebhooks: []*admissionv1.ValidatingWebhookConfiguration{{
			TypeMeta:   kind("ValidatingWebhookConfiguration"),
			ObjectMeta: metav1.ObjectMeta{Name: "teams"},
			Webhooks: []admissionv1.ValidatingWebhook{{
				Name: "check.teams.example.com", ClientConfig: service("/validate--v1-configmap"), Rules: rules(),
				FailurePolicy: &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			}},
		}},
	}
}

func TestWebhooksOfAManagerAreCalled(t *testing.T) {
	env := &envtest.Environment{WebhookInstallOptions: webhooks()}
	config := start(t, env)
	options := env.WebhookInstallOptions
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Metrics: metricsserver.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{
			Host: options.LocalServingHost, Port: options.LocalServingPort, CertDir: options.LocalServingCertDir,
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	hook := teams.Webhook[*corev1.ConfigMap]{Kind: schema.GroupKind{Kind: "ConfigMap"}}
	err = ctrl.NewWebhookManagedBy(manager, &corev1.ConfigMap{}).WithDefaulter(hook).WithValidator(hook).Complete()
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(running) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the manager ends with: %v", err)
		}
	})
	eventually(t, "the webhooks are served", timeout, func() bool {
		return manager.GetWebhookServer().StartedChecker()(nil) == nil
	})

	seen := &warnings{}
	warned := rest.CopyConfig(config)
	warned.WarningHandler = seen
	set, err := kubernetes.NewForConfig(warned)
	if err != nil {
		t.Fatal(err)
	}
	maps := set.CoreV1().ConfigMaps("default")
	create := func(name, team string) (*corev1.ConfigMap, error) {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if team != "unset" {
			object.Labels = map[string]string{"team": team}
		}
		return maps.Create(context20s(t), object, metav1.CreateOptions{})
	}
	created, err := create("defaulted", "unset")
	if err != nil || created.Labels["team"] != "none" {
		t.Fatalf("a ConfigMap without a team: %v, %v", created, err)
	}
	if len(seen.texts) != 1 || seen.texts[0] != "nobody is responsible" {
		t.Fatalf("the warning of the webhook: %q", seen.texts)
	}
	_, err = create("denied", "denied")
	if !apierrors.IsForbidden(err) || !strings.HasSuffix(err.Error(), `denied the request: team "denied" works no longer`) {
		t.Fatalf("a ConfigMap of a denied team: %v", err)
	}
	_, err = create("invalid", "")
	if !apierrors.IsInvalid(err) || len(err.(apierrors.APIStatus).Status().Details.Causes) != 1 {
		t.Fatalf("a ConfigMap with an empty team: %v", err)
	}
	created.Labels["team"] = "denied"
	if _, err = maps.Update(context20s(t), created, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Fatalf("an update to a denied team: %v", err)
	}
	if err = maps.Delete(context20s(t), "defaulted", metav1.DeleteOptions{}); err != nil {
		t.Fatalf("a deletion: %v", err)
	}
}
