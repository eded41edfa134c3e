// Records AdmissionReviews of a kube-apiserver, and the answers of webhooks with controller-runtime.
//
//	go run ./reviews KUBECONFIG FILE
//
// The cluster may not have the namespaces reviews and unlabeled. Each case is a request of a client;
// FILE gets every review that kube-apiserver sends for it, as it was sent, with the answer, as it was
// returned. kube-apiserver accepts each of these answers, or denies the request with its message.
package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"bellerophon/conformance/envtest/teams"
)

// recorded is a review with its answer.
type recorded struct {
	Name   string `json:"name"`
	Path   string `json:"path"`
	Review string `json:"review"`
	Answer string `json:"answer"`
}

// recorder keeps the reviews of the current case.
type recorder struct {
	mutex sync.Mutex
	name  string
	all   []recorded
}

// record serves a webhook. Reviews outside of a case are answered and not kept.
func (r *recorder) record(path string, webhook *admission.Webhook) {
	handler, err := admission.StandaloneWebhook(webhook, admission.StandaloneOptions{})
	must(err)
	http.HandleFunc(path, func(writer http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		must(err)
		request.Body = io.NopCloser(bytes.NewReader(body))
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		r.mutex.Lock()
		// Controllers of the cluster write Deployments, too.
		if r.name != "" && !bytes.Contains(body, []byte(`"username":"system:`)) {
			r.all = append(r.all, recorded{r.name, path, string(body), answer.Body.String()})
		}
		r.mutex.Unlock()
		for name, values := range answer.Header() {
			writer.Header()[name] = values
		}
		writer.WriteHeader(answer.Code)
		writer.Write(answer.Body.Bytes())
	})
}

// run records a case, which has to be sent to the webhooks, and is admitted or denied as expected.
func (r *recorder) run(name string, isAllowed bool, request func() error) {
	r.mutex.Lock()
	r.name = name
	before := len(r.all)
	r.mutex.Unlock()
	err := request()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.name = ""
	if len(r.all) == before {
		log.Fatalf("%s: no review; %v", name, err)
	}
	if isAllowed != (err == nil) || (err != nil && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err)) {
		log.Fatalf("%s: %v", name, err)
	}
}

func serve[T client.Object](r *recorder, kind schema.GroupKind, suffix string) {
	webhook := teams.Webhook[T]{Kind: kind}
	r.record("/mutate-"+suffix, admission.WithDefaulter[T](scheme.Scheme, webhook))
	r.record("/validate-"+suffix, admission.WithValidator[T](scheme.Scheme, webhook))
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: reviews KUBECONFIG FILE")
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	must(err)
	config.WarningHandler = rest.NoWarnings{}
	set, err := kubernetes.NewForConfig(config)
	must(err)
	r := &recorder{}
	serve[*corev1.ConfigMap](r, schema.GroupKind{Kind: "ConfigMap"}, "-v1-configmap")
	serve[*appsv1.Deployment](r, schema.GroupKind{Group: "apps", Kind: "Deployment"}, "apps-v1-deployment")
	serve[*appsv1.Deployment](r, schema.GroupKind{Group: "apps", Kind: "Deployment"}, "apps-v1-deployment-status")
	address, authority := listen()
	prepare(set, address, authority)
	cases(r, config, set)
	must(set.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(ctx, "reviews", metav1.DeleteOptions{}))
	must(set.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(ctx, "reviews", metav1.DeleteOptions{}))
	for _, name := range []string{"reviews", "unlabeled"} {
		must(set.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}))
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	must(encoder.Encode(r.all))
	must(os.WriteFile(os.Args[2], text.Bytes(), 0o644))
	fmt.Printf("%d reviews\n", len(r.all))
}

var ctx = context.Background()

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// listen serves the webhooks with a new certificate, and returns their address and the certificate.
func listen() (string, []byte) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(err)
	certificate := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}})
	must(err)
	go func() { log.Fatal(http.Serve(listener, nil)) }()
	return listener.Addr().String(), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// prepare registers the webhooks and waits until they are called. Objects of the namespace reviews
// are mutated and validated, those of the namespace unlabeled only validated.
func prepare(set *kubernetes.Clientset, address string, authority []byte) {
	for _, name := range []string{"reviews", "unlabeled"} {
		labels := map[string]string{"reviews": "validated"}
		if name == "reviews" {
			labels["reviews-mutated"] = "true"
		}
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		_, err := set.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
		must(err)
	}
	none := admissionv1.SideEffectClassNone
	fail := admissionv1.Fail
	clientConfig := func(path string) admissionv1.WebhookClientConfig {
		url := "https://" + address + path
		return admissionv1.WebhookClientConfig{URL: &url, CABundle: authority}
	}
	rules := func(group, resource string, operations ...admissionv1.OperationType) []admissionv1.RuleWithOperations {
		rule := admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{resource}}
		return []admissionv1.RuleWithOperations{{Operations: operations, Rule: rule}}
	}
	mutating := &admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "reviews"}}
	validating := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "reviews"}}
	for _, kind := range []struct{ name, group, resource, suffix string }{
		{"configmap", "", "configmaps", "-v1-configmap"},
		{"deployment", "apps", "deployments", "apps-v1-deployment"},
		{"status", "apps", "deployments/status", "apps-v1-deployment-status"},
	} {
		mutating.Webhooks = append(mutating.Webhooks, admissionv1.MutatingWebhook{
			Name: kind.name + ".mutate.example.com", ClientConfig: clientConfig("/mutate-" + kind.suffix),
			Rules:             rules(kind.group, kind.resource, admissionv1.Create, admissionv1.Update),
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"reviews-mutated": "true"}},
			FailurePolicy:     &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
		})
		validating.Webhooks = append(validating.Webhooks, admissionv1.ValidatingWebhook{
			Name: kind.name + ".validate.example.com", ClientConfig: clientConfig("/validate-" + kind.suffix),
			Rules:             rules(kind.group, kind.resource, admissionv1.Create, admissionv1.Update, admissionv1.Delete),
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"reviews": "validated"}},
			FailurePolicy:     &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
		})
	}
	_, err := set.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(ctx, mutating, metav1.CreateOptions{})
	must(err)
	_, err = set.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, validating, metav1.CreateOptions{})
	must(err)
	for {
		probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe", Labels: map[string]string{"team": "denied"}}}
		_, err := set.CoreV1().ConfigMaps("reviews").Create(ctx, probe, metav1.CreateOptions{DryRun: []string{"All"}})
		mutated, _ := set.CoreV1().ConfigMaps("reviews").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe"}},
			metav1.CreateOptions{DryRun: []string{"All"}})
		if err != nil && mutated != nil && mutated.Labels["team"] == "none" {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func cases(r *recorder, config *rest.Config, set *kubernetes.Clientset) {
	configMaps(r, set)
	asAnotherUser(r, config)
	deployments(r, set)
}

func configMap(name string, labels map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: map[string]string{"example.com/text": "1 < 2 & \u2028 \"é\""}},
		Data:       map[string]string{"a.b": "1", "a_b": "two\nlines"},
		BinaryData: map[string][]byte{"bytes": {0, 255}},
	}
}

func team(name string) map[string]string { return map[string]string{"team": name} }

func configMaps(r *recorder, set *kubernetes.Clientset) {
	maps := set.CoreV1().ConfigMaps("reviews")
	unlabeled := set.CoreV1().ConfigMaps("unlabeled")
	create := func(object *corev1.ConfigMap) func() error {
		return func() error {
			_, err := maps.Create(ctx, object, metav1.CreateOptions{})
			return err
		}
	}
	update := func(object *corev1.ConfigMap) func() error {
		return func() error {
			_, err := maps.Update(ctx, object, metav1.UpdateOptions{})
			return err
		}
	}
	patch := func(name string, kind types.PatchType, text string, options metav1.PatchOptions) func() error {
		return func() error {
			_, err := maps.Patch(ctx, name, kind, []byte(text), options)
			return err
		}
	}
	remove := func(name string, options metav1.DeleteOptions) func() error {
		return func() error { return maps.Delete(ctx, name, options) }
	}
	r.run("a ConfigMap with a team is created", true, create(configMap("valid", team("a"))))
	r.run("a ConfigMap without labels is created", true, create(configMap("none", nil)))
	r.run("a ConfigMap with other labels is created", true, create(configMap("others", map[string]string{"app.kubernetes.io/name": "x"})))
	r.run("an empty ConfigMap is created", true, create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "empty"}}))
	generated := configMap("", team("a"))
	generated.GenerateName = "generated-"
	r.run("a ConfigMap with a generated name is created", true, create(generated))
	r.run("a ConfigMap of a denied team is created", false, create(configMap("denied", team("denied"))))
	r.run("a ConfigMap with an empty team is created", false, create(configMap("invalid", team(""))))
	r.run("a ConfigMap without labels is only validated", false, func() error {
		_, err := unlabeled.Create(ctx, configMap("invalid", nil), metav1.CreateOptions{})
		return err
	})
	r.run("a creation is a dry run", true, func() error {
		options := metav1.CreateOptions{DryRun: []string{"All"}, FieldManager: "reviews", FieldValidation: "Strict"}
		_, err := maps.Create(ctx, configMap("dry", nil), options)
		return err
	})
	changed := configMap("valid", team("b"))
	changed.Data = nil
	r.run("a ConfigMap is updated", true, update(changed))
	r.run("the team of a ConfigMap is removed by an update", true, update(configMap("valid", nil)))
	r.run("an update to a denied team", false, update(configMap("valid", team("denied"))))
	r.run("a merge patch", true, patch("valid", types.MergePatchType, `{"data":{"a.b":null}}`, metav1.PatchOptions{}))
	r.run("a JSON patch of a dry run", true, patch("valid", types.JSONPatchType,
		`[{"op":"remove","path":"/metadata/labels"}]`, metav1.PatchOptions{DryRun: []string{"All"}}))
	force := true
	options := metav1.PatchOptions{FieldManager: "reviews", Force: &force}
	applied := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s"},"data":{"a":"%s"}}`
	r.run("server-side apply of a new ConfigMap", true, patch("applied", types.ApplyPatchType, fmt.Sprintf(applied, "applied", "1"), options))
	r.run("server-side apply of a ConfigMap", true, patch("applied", types.ApplyPatchType, fmt.Sprintf(applied, "applied", "2"), options))
	r.run("a ConfigMap that is kept is created", true, create(configMap("kept", team("kept"))))
	r.run("a denied deletion", false, remove("kept", metav1.DeleteOptions{}))
	r.run("a deletion as a dry run", true, remove("valid", metav1.DeleteOptions{DryRun: []string{"All"}}))
	background := metav1.DeletePropagationBackground
	r.run("a deletion with options", true, remove("valid", metav1.DeleteOptions{PropagationPolicy: &background}))
	r.run("a collection is deleted", true, func() error {
		list := metav1.ListOptions{FieldSelector: "metadata.name=none"}
		return maps.DeleteCollection(ctx, metav1.DeleteOptions{}, list)
	})
	finalized := configMap("finalized", team("a"))
	finalized.Finalizers = []string{"example.com/reviews"}
	r.run("a ConfigMap with a finalizer is created", true, create(finalized))
	r.run("a ConfigMap with a finalizer is deleted", true, remove("finalized", metav1.DeleteOptions{}))
	r.run("the finalizer of a terminating ConfigMap is removed", true,
		patch("finalized", types.MergePatchType, `{"metadata":{"finalizers":null}}`, metav1.PatchOptions{}))
}

// asAnotherUser records a user with all fields.
func asAnotherUser(r *recorder, config *rest.Config) {
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "jane", UID: "42", Groups: []string{"system:masters", "team-a"},
		Extra: map[string][]string{"example.com/scopes": {"read", "write"}},
	}
	set, err := kubernetes.NewForConfig(config)
	must(err)
	r.run("a user with groups, uid and extra fields", true, func() error {
		_, err := set.CoreV1().ConfigMaps("reviews").Create(ctx, configMap("of-jane", nil), metav1.CreateOptions{})
		return err
	})
}

func deployments(r *recorder, set *kubernetes.Clientset) {
	all := set.AppsV1().Deployments("reviews")
	labels := map[string]string{"app": "web"}
	replicas := int32(0)
	object := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web:1"}}},
			},
		},
	}
	r.run("a Deployment is created", true, func() error {
		_, err := all.Create(ctx, object, metav1.CreateOptions{})
		return err
	})
	r.run("a Deployment of a denied team is created", false, func() error {
		denied := object.DeepCopy()
		denied.Name, denied.Labels = "denied", team("denied")
		_, err := all.Create(ctx, denied, metav1.CreateOptions{})
		return err
	})
	r.run("a Deployment with an empty team is created", false, func() error {
		invalid := object.DeepCopy()
		invalid.Name, invalid.Labels = "invalid", team("")
		_, err := all.Create(ctx, invalid, metav1.CreateOptions{})
		return err
	})
	r.run("the image of a Deployment is patched", true, func() error {
		patch := `{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"web:2"}]}}}}`
		_, err := all.Patch(ctx, "web", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	})
	r.run("the status of a Deployment is patched", true, func() error {
		patch := `{"status":{"conditions":[{"type":"Example","status":"True"}]}}`
		_, err := all.Patch(ctx, "web", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		return err
	})
	r.run("a Deployment is deleted", true, func() error {
		return all.Delete(ctx, "web", metav1.DeleteOptions{})
	})
}
