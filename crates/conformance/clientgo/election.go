package main

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

var electionChecks = []check{
	{"one of two leads, and the other after it", oneOfTwoLeads},
}

// candidate runs for the lease until its context ends.
func candidate(ctx context.Context, w *world, name string, leads chan<- string) error {
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, w.namespace, "election", w.client.CoreV1(), w.client.CoordinationV1(),
		resourcelock.ResourceLockConfig{Identity: name})
	if err != nil {
		return err
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   4 * time.Second,
		RenewDeadline:   3 * time.Second,
		RetryPeriod:     200 * time.Millisecond,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { leads <- name },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return err
	}
	go elector.Run(ctx)
	return nil
}

func next(ctx context.Context, leads <-chan string) (string, error) {
	select {
	case name := <-leads:
		return name, nil
	case <-ctx.Done():
		return "", errors.New("nobody leads")
	}
}

func oneOfTwoLeads(ctx context.Context, w *world) error {
	leads := make(chan string, 2)
	first, resign := context.WithCancel(ctx)
	defer resign()
	if err := candidate(first, w, "first", leads); err != nil {
		return err
	}
	leader, err := next(ctx, leads)
	if err != nil {
		return err
	}
	if err := wanted("leader", leader, "first"); err != nil {
		return err
	}
	second, end := context.WithCancel(ctx)
	defer end()
	if err := candidate(second, w, "second", leads); err != nil {
		return err
	}
	resign()
	if leader, err = next(ctx, leads); err != nil {
		return err
	}
	if err := wanted("leader after it", leader, "second"); err != nil {
		return err
	}
	lease, err := w.client.CoordinationV1().Leases(w.namespace).Get(ctx, "election", metav1.GetOptions{})
	if err != nil {
		return err
	}
	return wanted("holder", *lease.Spec.HolderIdentity, "second")
}
