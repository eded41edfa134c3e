package main

// Caches until they are synced, controllers until every object was reconciled once. Out: what ../informer/process.rs reads.

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
)

const (
	pods       = 50_000
	configMaps = 10_000
	workers    = 4
	rest       = 500 * time.Millisecond
)

func client(name, kubeconfig string) error {
	start, err := memory("VmRSS")
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	set, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(set, 0)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	switch name {
	case "client-go":
		err = fill(ctx, factory, nil, false)
	case "client-go, a handler of objects":
		err = fill(ctx, factory, nil, true)
	case "client-go, managedFields dropped":
		err = fill(ctx, factory, func(object any) (any, error) {
			if accessor, err := meta.Accessor(object); err == nil {
				accessor.SetManagedFields(nil)
			}
			return object, nil
		}, false)
	case "client-go controller":
		err = reconcile(ctx, factory)
	default:
		err = fmt.Errorf("no client is called %s", name)
	}
	if err != nil {
		return err
	}
	wall, cpu := time.Since(begun), processor()
	debug.FreeOSMemory()
	time.Sleep(rest)
	peak, err := memory("VmHWM")
	if err != nil {
		return err
	}
	settled, err := memory("VmRSS")
	if err != nil {
		return err
	}
	fmt.Println(wall.Seconds(), cpu.Seconds(), start, peak, settled)
	// The cache lives as long as it is measured.
	cancel()
	factory.Shutdown()
	return nil
}

// fill caches with all pods, and may tell a handler of each.
func fill(ctx context.Context, factory informers.SharedInformerFactory, transform cache.TransformFunc, withHandler bool) error {
	informer := factory.Core().V1().Pods().Informer()
	if transform != nil {
		if err := informer.SetTransform(transform); err != nil {
			return err
		}
	}
	delivered := atomic.Int64{}
	synced := informer.HasSynced
	if withHandler {
		handle, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { delivered.Add(1) }})
		if err != nil {
			return err
		}
		synced = handle.HasSynced
	}
	factory.Start(ctx.Done())
	for !synced() {
		time.Sleep(10 * time.Millisecond)
	}
	if withHandler && delivered.Load() != pods {
		return fmt.Errorf("%d pods delivered instead of %d", delivered.Load(), pods)
	}
	if found := len(informer.GetStore().ListKeys()); found != pods {
		return fmt.Errorf("%d pods instead of %d", found, pods)
	}
	return nil
}

// reconcile works on every config map once.
func reconcile(ctx context.Context, factory informers.SharedInformerFactory) error {
	informer := factory.Core().V1().ConfigMaps().Informer()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	add := func(object any) {
		if key, err := cache.MetaNamespaceKeyFunc(object); err == nil {
			queue.Add(key)
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    add,
		UpdateFunc: func(_, object any) { add(object) },
	}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	for !informer.HasSynced() {
		time.Sleep(10 * time.Millisecond)
	}
	var done atomic.Int64
	all := make(chan struct{})
	for range workers {
		go func() {
			for {
				key, shutDown := queue.Get()
				if shutDown {
					return
				}
				if _, known, err := informer.GetStore().GetByKey(key); known && err == nil && done.Add(1) == configMaps {
					close(all)
				}
				queue.Forget(key)
				queue.Done(key)
			}
		}()
	}
	<-all
	queue.ShutDown()
	return nil
}

// processor is the time that this process had a processor so far.
func processor() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// memory is what the kernel says under a name, in KiB.
func memory(name string) (int, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, found := strings.CutPrefix(line, name+":"); found {
			var kilobytes int
			_, err := fmt.Sscanf(strings.TrimSpace(rest), "%d kB", &kilobytes)
			return kilobytes, err
		}
	}
	return 0, fmt.Errorf("no %s in /proc/self/status", name)
}
