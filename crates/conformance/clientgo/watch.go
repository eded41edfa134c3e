package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

var watchChecks = []check{
	{"a watch tells every change in order", watchTellsEveryChange},
	{"a watch by selector tells when an object leaves it", watchBySelector},
	{"a watch goes on from a known version", watchGoesOn},
	{"informers sync, follow and index", informersFollow},
}

func nextEvent(ctx context.Context, events <-chan watch.Event, want watch.EventType, value string) error {
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s %s: no such event in time", want, value)
		case event, open := <-events:
			if !open {
				return fmt.Errorf("%s %s: the watch ended", want, value)
			}
			if event.Type == watch.Bookmark {
				continue
			}
			object, isMap := event.Object.(*corev1.ConfigMap)
			if !isMap {
				return fmt.Errorf("%s %s: found %v", want, value, event)
			}
			return wanted("event", string(event.Type)+" "+object.Data["k"], string(want)+" "+value)
		}
	}
}

func watchTellsEveryChange(ctx context.Context, w *world) error {
	maps := w.client.CoreV1().ConfigMaps(w.namespace)
	watching, err := maps.Watch(ctx, metav1.ListOptions{LabelSelector: "check=seen", AllowWatchBookmarks: true})
	if err != nil {
		return err
	}
	defer watching.Stop()
	made, err := maps.Create(ctx, configMap("seen", "1"), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	for _, value := range []string{"2", "3"} {
		made.Data["k"] = value
		if made, err = maps.Update(ctx, made, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	if err := maps.Delete(ctx, "seen", metav1.DeleteOptions{}); err != nil {
		return err
	}
	for _, want := range []struct {
		kind  watch.EventType
		value string
	}{{watch.Added, "1"}, {watch.Modified, "2"}, {watch.Modified, "3"}, {watch.Deleted, "3"}} {
		if err := nextEvent(ctx, watching.ResultChan(), want.kind, want.value); err != nil {
			return err
		}
	}
	return nil
}

func watchBySelector(ctx context.Context, w *world) error {
	maps := w.client.CoreV1().ConfigMaps(w.namespace)
	watching, err := maps.Watch(ctx, metav1.ListOptions{LabelSelector: "check=leaving"})
	if err != nil {
		return err
	}
	defer watching.Stop()
	if _, err := maps.Create(ctx, configMap("leaving", "1"), metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := maps.Patch(ctx, "leaving", types.MergePatchType, []byte(`{"metadata":{"labels":null}}`), metav1.PatchOptions{}); err != nil {
		return err
	}
	if err := nextEvent(ctx, watching.ResultChan(), watch.Added, "1"); err != nil {
		return err
	}
	return nextEvent(ctx, watching.ResultChan(), watch.Deleted, "1")
}

func watchGoesOn(ctx context.Context, w *world) error {
	maps := w.client.CoreV1().ConfigMaps(w.namespace)
	list, err := maps.List(ctx, metav1.ListOptions{LabelSelector: "check=later"})
	if err != nil {
		return err
	}
	if _, err := maps.Create(ctx, configMap("later", "1"), metav1.CreateOptions{}); err != nil {
		return err
	}
	source := &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		options.LabelSelector = "check=later"
		return maps.Watch(ctx, options)
	}}
	watching, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, source)
	if err != nil {
		return err
	}
	defer watching.Stop()
	return nextEvent(ctx, watching.ResultChan(), watch.Added, "1")
}

// counts is what handlers were told.
type counts struct {
	sync.Mutex
	added, updated, deleted int
}

func (c *counts) handler() cache.ResourceEventHandlerFuncs {
	count := func(n *int) {
		c.Lock()
		defer c.Unlock()
		*n++
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { count(&c.added) },
		UpdateFunc: func(_, _ any) { count(&c.updated) },
		DeleteFunc: func(any) { count(&c.deleted) },
	}
}

func (c *counts) told() [3]int {
	c.Lock()
	defer c.Unlock()
	return [3]int{c.added, c.updated, c.deleted}
}

func informersFollow(ctx context.Context, w *world) error {
	const byValue = "value"
	maps := w.client.CoreV1().ConfigMaps(w.namespace)
	if _, err := maps.Create(ctx, configMap("cached-a", "red"), metav1.CreateOptions{}); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	cached := informers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = "check in (cached-a, cached-b)" })
	factory := informers.NewSharedInformerFactoryWithOptions(w.client, time.Hour, informers.WithNamespace(w.namespace), cached)
	informer := factory.Core().V1().ConfigMaps().Informer()
	index := cache.Indexers{byValue: func(object any) ([]string, error) { return []string{object.(*corev1.ConfigMap).Data["k"]}, nil }}
	if err := informer.AddIndexers(index); err != nil {
		return err
	}
	var seen counts
	if _, err := informer.AddEventHandler(seen.handler()); err != nil {
		return err
	}
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	defer stop()
	if err := wanted("informers synced", cache.WaitForCacheSync(ctx.Done(), informer.HasSynced), true); err != nil {
		return err
	}
	made, err := maps.Create(ctx, configMap("cached-b", "red"), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.Data["k"] = "blue"
	if _, err := maps.Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		return err
	}
	if err := maps.Delete(ctx, "cached-a", metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := until(ctx, "handlers were told of everything", func() (bool, error) { return seen.told() == [3]int{2, 1, 1}, nil }); err != nil {
		return fmt.Errorf("%w (added, updated, deleted: %v)", err, seen.told())
	}
	blue, err := informer.GetIndexer().ByIndex(byValue, "blue")
	if err != nil {
		return err
	}
	if err := wanted("objects indexed as blue", len(blue), 1); err != nil {
		return err
	}
	listed, err := factory.Core().V1().ConfigMaps().Lister().ConfigMaps(w.namespace).List(labels.Everything())
	if err != nil {
		return err
	}
	return wanted("objects listed", len(listed), 1)
}
