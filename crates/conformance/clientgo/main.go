// Program clientgo does against a server what Go programs do with client-go: typed and dynamic clients, apply, watches, informers, leader election.
//
// In: a kubeconfig. Out: a line for each promise, kept or broken; exit code 1 when one is broken. Everything happens in a namespace of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// patience is longer than anything here takes on a busy machine; only a broken promise waits for it.
const patience = 30 * time.Second

// world is what every check works with.
type world struct {
	config    *rest.Config
	client    kubernetes.Interface
	dynamic   dynamic.Interface
	namespace string
}

// check is one promise. It has its own patience.
type check struct {
	promise string
	holds   func(ctx context.Context, w *world) error
}

var checks = [][]check{discoveryChecks, typedChecks, applyChecks, watchChecks, dynamicChecks, electionChecks, accessChecks}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "the file through which the server is found")
	flag.Parse()
	broken, err := run(*kubeconfig)
	if err != nil {
		fmt.Fprintln(os.Stderr, "clientgo:", err)
		os.Exit(1)
	}
	if broken > 0 {
		os.Exit(1)
	}
}

// run tries every promise and tells how many are broken.
func run(kubeconfig string) (int, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return 0, err
	}
	// The checks are no load test, but they must not wait for the client's own limit either.
	config.QPS, config.Burst = 500, 500
	w, err := newWorld(config)
	if err != nil {
		return 0, err
	}
	broken := 0
	for _, group := range checks {
		for _, c := range group {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			if err := c.holds(ctx, w); err != nil {
				fmt.Printf("broken: %s: %v\n", c.promise, err)
				broken++
			} else {
				fmt.Printf("kept: %s\n", c.promise)
			}
			cancel()
		}
	}
	return broken, nil
}

func newWorld(config *rest.Config) (*world, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "clientgo-"}}
	made, err := client.CoreV1().Namespaces().Create(context.Background(), namespace, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	w := &world{config: config, client: client, dynamic: dynamicClient, namespace: made.Name}
	return w, w.ensureAccount()
}

// ensureAccount makes the account that pods need where no controller does.
func (w *world) ensureAccount() error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	_, err := w.client.CoreV1().ServiceAccounts(w.namespace).Create(context.Background(), account, metav1.CreateOptions{})
	if err != nil && !isAlreadyThere(err) {
		return err
	}
	return nil
}

// wanted is an error unless what was found is what was wanted.
func wanted[T comparable](what string, found, want T) error {
	if found != want {
		return fmt.Errorf("%s: wanted %v, found %v", what, want, found)
	}
	return nil
}

// refused is an error unless the server refused in the way that is told.
func refused(what string, err error, as func(error) bool) error {
	switch {
	case err == nil:
		return fmt.Errorf("%s: was not refused", what)
	case !as(err):
		return fmt.Errorf("%s: was refused otherwise: %w", what, err)
	default:
		return nil
	}
}

// until waits for something to become true.
func until(ctx context.Context, what string, holds func() (bool, error)) error {
	err := wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) { return holds() })
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: did not happen in time", what)
	}
	return err
}
