// Package envtest checks the directory of `bellerophon envtest` with the envtest package of
// controller-runtime, as it is. KUBEBUILDER_ASSETS names the directory of profile none,
// BELLEROPHON_CORE_ASSETS that of profile core.
package envtest

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

const timeout = 20 * time.Second

// start starts an environment that is stopped at the end of the test.
func start(t *testing.T, env *envtest.Environment) *rest.Config {
	t.Helper()
	config, err := env.Start()
	if err != nil {
		t.Fatalf("the environment does not start: %v", err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Errorf("the environment does not stop: %v", err)
		}
	})
	return config
}

func clientset(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	set, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// eventually polls a condition until it holds.
func eventually(t *testing.T, what string, max time.Duration, holds func() bool) time.Duration {
	t.Helper()
	begun := time.Now()
	for !holds() {
		if time.Since(begun) > max {
			t.Fatalf("%s: not within %s", what, max)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(begun)
}

func context20s(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	t.Cleanup(cancel)
	return ctx
}

func heroes() *apiextensionsv1.CustomResourceDefinition {
	preserve := true
	schema := &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
		Type: "object", XPreserveUnknownFields: &preserve,
	}}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "heroes.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com",
			Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: "heroes", Singular: "hero", Kind: "Hero", ListKind: "HeroList",
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				{Name: "v1", Served: true, Storage: true, Schema: schema},
			},
		},
	}
}

func hero(name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"strength": int64(7)}}}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Hero"})
	object.SetName(name)
	object.SetNamespace("default")
	return object
}

func TestEnvironmentStartsWithCustomResources(t *testing.T) {
	begun := time.Now()
	config := start(t, &envtest.Environment{CRDs: []*apiextensionsv1.CustomResourceDefinition{heroes()}})
	t.Logf("started in %s", time.Since(begun))
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Create(context20s(t), hero("perseus")); err != nil {
		t.Fatal(err)
	}
	read := hero("perseus")
	if err := c.Get(context20s(t), client.ObjectKeyFromObject(read), read); err != nil {
		t.Fatal(err)
	}
}

func TestUsersAreAddedAfterTheStartAndAuthorizedByRoles(t *testing.T) {
	env := &envtest.Environment{}
	start(t, env)
	user, err := env.AddUser(envtest.User{Name: "ann", Groups: []string{"devs"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = clientset(t, user.Config()).CoreV1().Pods("default").List(context20s(t), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "ann" cannot list`) {
		t.Fatalf("expected a refusal that names ann, got %v", err)
	}
	admin, err := env.AddUser(envtest.User{Name: "root", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clientset(t, admin.Config()).CoreV1().Pods("").List(context20s(t), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestServiceAccountTokensAreSignedWithTheKeyOfTheEnvironment(t *testing.T) {
	env := &envtest.Environment{}
	config := start(t, env)
	set := clientset(t, config)
	accounts := set.CoreV1().ServiceAccounts("default")
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}
	if _, err := accounts.Create(context20s(t), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	request, err := accounts.CreateToken(context20s(t), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	anonymous := rest.AnonymousClientConfig(config)
	anonymous.BearerToken = request.Status.Token
	review, err := clientset(t, anonymous).AuthenticationV1().SelfSubjectReviews().
		Create(context20s(t), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if name := review.Status.UserInfo.Username; name != "system:serviceaccount:default:robot" {
		t.Fatalf("the token is of %s", name)
	}
	issuer := "https://" + env.ControlPlane.GetAPIServer().SecureServing.ListenAddr.HostPort() + "/"
	if audiences := request.Spec.Audiences; len(audiences) != 1 || audiences[0] != issuer {
		t.Fatalf("expected the audience %s, got %v", issuer, audiences)
	}
}

func TestNoControllersRunByDefault(t *testing.T) {
	set := clientset(t, start(t, &envtest.Environment{}))
	ctx := context20s(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}
	if _, err := set.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The plugin ServiceAccount is disabled: a pod needs no account.
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Image: "i"}},
	}}
	if _, err := set.CoreV1().Pods("team").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := set.CoreV1().Namespaces().Delete(ctx, "team", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	read, err := set.CoreV1().Namespaces().Get(ctx, "team", metav1.GetOptions{})
	if err != nil || read.Status.Phase != corev1.NamespaceTerminating {
		t.Fatalf("a namespace stays terminating without controllers: %v, %v", read.Status, err)
	}
	configMaps, err := set.CoreV1().ConfigMaps("team").List(ctx, metav1.ListOptions{})
	if err != nil || len(configMaps.Items) != 0 {
		t.Fatalf("expected no objects of controllers, got %v, %v", configMaps.Items, err)
	}
}

func TestProfileCoreCollectsGarbageAndDeletesNamespaces(t *testing.T) {
	assets := os.Getenv("BELLEROPHON_CORE_ASSETS")
	if assets == "" {
		t.Skip("BELLEROPHON_CORE_ASSETS is not set")
	}
	env := &envtest.Environment{}
	env.ControlPlane.GetAPIServer().Path = filepath.Join(assets, "kube-apiserver")
	set := clientset(t, start(t, env))
	ctx := context20s(t)
	configMaps := set.CoreV1().ConfigMaps("default")
	owner, err := configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owned", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID},
	}}}
	if _, err := configMaps.Create(ctx, owned, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := configMaps.Delete(ctx, "owner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	collected := eventually(t, "the owned object is deleted", timeout, func() bool {
		_, err := configMaps.Get(ctx, "owned", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}
	if _, err := set.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := set.CoreV1().Namespaces().Delete(ctx, "team", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deleted := eventually(t, "the namespace is deleted", timeout, func() bool {
		_, err := set.CoreV1().Namespaces().Get(ctx, "team", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	t.Logf("owned object after %s, namespace after %s", collected, deleted)
}

func TestObjectsSurviveARestartOfTheAPIServer(t *testing.T) {
	env := &envtest.Environment{CRDs: []*apiextensionsv1.CustomResourceDefinition{heroes()}}
	config := start(t, env)
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	created := hero("perseus")
	if err := c.Create(context20s(t), created); err != nil {
		t.Fatal(err)
	}
	server := env.ControlPlane.GetAPIServer()
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	user, err := env.AddUser(envtest.User{Name: "root", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err = client.New(user.Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	read := hero("perseus")
	if err := c.Get(context20s(t), client.ObjectKeyFromObject(read), read); err != nil {
		t.Fatal(err)
	}
	if read.GetUID() != created.GetUID() {
		t.Fatalf("expected uid %s, got %s", created.GetUID(), read.GetUID())
	}
}

func TestSigtermWithOpenWatchesEndsTheServerWithinASecond(t *testing.T) {
	env := &envtest.Environment{}
	config, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	set := clientset(t, config)
	for range 50 {
		watch, err := set.CoreV1().Pods("").Watch(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer watch.Stop()
	}
	begun := time.Now()
	if err := env.ControlPlane.GetAPIServer().Stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > time.Second {
		t.Errorf("the API server took %s", took)
	} else {
		t.Logf("the API server stopped in %s", took)
	}
	begun = time.Now()
	if err := env.ControlPlane.Etcd.Stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > time.Second {
		t.Errorf("etcd took %s", took)
	}
}

func TestFeatureGateSwitchesAggregatedDiscoveryOff(t *testing.T) {
	env := &envtest.Environment{}
	env.ControlPlane.GetAPIServer().Configure().Append("feature-gates", "AggregatedDiscoveryEndpoint=false")
	config := start(t, env)
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequest(http.MethodGet, strings.TrimSuffix(config.Host, "/")+"/apis", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", discovery.AcceptV2+","+"application/json")
	response, err := httpClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if kind := response.Header.Get("Content-Type"); kind != "application/json" {
		t.Fatalf("expected plain discovery, got %s", kind)
	}
}

func TestFlagsOfPublicSuitesAreAccepted(t *testing.T) {
	directory := t.TempDir()
	tokens := filepath.Join(directory, "tokens.csv")
	if err := os.WriteFile(tokens, []byte("secret,bob,7,\"devs,ops\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := &envtest.Environment{}
	arguments := env.ControlPlane.GetAPIServer().Configure()
	for flag, value := range map[string]string{
		"runtime-config":                 "api/all=true",
		"enable-admission-plugins":       "PodNodeSelector,AlwaysPullImages",
		"token-auth-file":                tokens,
		"requestheader-client-ca-file":   tokens,
		"max-requests-inflight":          "800",
		"max-mutating-requests-inflight": "400",
		"delete-collection-workers":      "2",
		"advertise-address":              "127.0.0.1",
		"v":                              "4",
		"no-such-flag":                   "x",
	} {
		arguments.Append(flag, value)
	}
	etcd := &envtest.Etcd{}
	for flag, value := range map[string]string{
		"max-request-bytes": "1", "election-timeout": "5000", "heartbeat-interval": "500",
		"auto-compaction-retention": "1h",
	} {
		etcd.Configure().Append(flag, value)
	}
	env.ControlPlane.Etcd = etcd
	config := rest.AnonymousClientConfig(start(t, env))
	config.BearerToken = "secret"
	review, err := clientset(t, config).AuthenticationV1().SelfSubjectReviews().
		Create(context20s(t), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(review.Status.UserInfo.Username, review.Status.UserInfo.Groups); got != "bob[devs ops system:authenticated]" {
		t.Fatalf("the token is of %s", got)
	}
}

func TestOldArgumentsOfSuitesAreAccepted(t *testing.T) {
	env := &envtest.Environment{}
	server := env.ControlPlane.GetAPIServer()
	server.Args = append([]string{ //nolint:staticcheck // what suites of 2020 pass
		"--advertise-address=127.0.0.1", "", "--insecure-port=0", "--admission-control=AlwaysAdmit",
	}, envtest.DefaultKubeAPIServerFlags...) //nolint:staticcheck
	set := clientset(t, start(t, env))
	if _, err := set.CoreV1().Namespaces().Get(context20s(t), "default", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestKubectlOfTheDirectoryReadsTheDefaultNamespace(t *testing.T) {
	env := &envtest.Environment{}
	start(t, env)
	user, err := env.AddUser(envtest.User{Name: "root", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := user.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl")
	output, err := exec.Command(kubectl, "--kubeconfig", path, "--request-timeout=5s", "get", "ns", "default").CombinedOutput()
	if err != nil || !strings.Contains(string(output), "Active") {
		t.Fatalf("%v: %s", err, output)
	}
}

// residentMemory is the memory of the processes of the test binaries in MiB: the number of processes,
// the sum of their resident sets, and the sum with pages that they share counted once.
func residentMemory(t *testing.T, assets string) (processes, resident, proportional int) {
	t.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		command, err := os.ReadFile(entry)
		// The process may have ended, or belong to somebody else.
		if err != nil || !strings.HasPrefix(string(command), assets) {
			continue
		}
		rollup, err := os.ReadFile(filepath.Join(filepath.Dir(entry), "smaps_rollup"))
		if err != nil {
			continue
		}
		processes++
		for line := range strings.Lines(string(rollup)) {
			var kilobytes int
			if _, err := fmt.Sscanf(line, "Rss: %d kB", &kilobytes); err == nil {
				resident += kilobytes
			}
			if _, err := fmt.Sscanf(line, "Pss: %d kB", &kilobytes); err == nil {
				proportional += kilobytes
			}
		}
	}
	return processes, resident / 1024, proportional / 1024
}

func TestEnvironmentsRunInParallel(t *testing.T) {
	const environments, rounds = 20, 3
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	for round := range rounds {
		begun := time.Now()
		running := make([]*envtest.Environment, environments)
		errors := make([]error, environments)
		var group sync.WaitGroup
		for index := range environments {
			running[index] = &envtest.Environment{}
			group.Go(func() { _, errors[index] = running[index].Start() })
		}
		group.Wait()
		started := time.Since(begun)
		for _, err := range errors {
			if err != nil {
				t.Errorf("round %d: %v", round, err)
			}
		}
		processes, resident, proportional := residentMemory(t, assets)
		for _, env := range running {
			group.Go(func() {
				if err := env.Stop(); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		group.Wait()
		t.Logf("%d environments started in %s; %d processes, %d MiB resident, %d MiB with shared pages counted once",
			environments, started, processes, resident, proportional)
	}
}
