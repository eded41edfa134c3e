package main

// The work queue in a shape of ../queue.rs, with texts or object keys. Out: millions of keys a second, the best of five runs.

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
)

const (
	rounds = 5
	count  = 1_000_000
)

func queue(kind, shape string) {
	texts, objects := make([]string, count), make([]types.NamespacedName, count)
	for i := range count {
		objects[i] = types.NamespacedName{Namespace: fmt.Sprintf("namespace-%d", i%100), Name: fmt.Sprintf("name-%d", i)}
		texts[i] = objects[i].String()
	}
	if kind == "texts" {
		report(shape, texts)
	} else {
		report(shape, objects)
	}
}

// report prints the best of several runs; nothing for a shape that is not here.
func report[T comparable](shape string, keys []T) {
	ownThreads := strings.HasPrefix(shape, "8 threads")
	handled := count
	var run func() time.Duration
	switch shape {
	case "full backlog: add all, then get and done all":
		run = func() time.Duration { return backlog(keys) }
	case "one at a time: add, get, done":
		run = func() time.Duration { return oneAtATime(keys) }
	case "100 keys in a new queue (`BenchmarkQueue`)":
		run = func() time.Duration {
			var all time.Duration
			for range count / 100 {
				all += oneAtATime(keys[:100])
			}
			return all
		}
	case "8 tasks: each add, get, done", "8 threads: each add, get, done":
		run = func() time.Duration { return everyone(keys, ownThreads) }
	case "8 tasks: 4 add, 4 get and done", "8 threads: 4 add, 4 get and done":
		run = func() time.Duration { return producersAndConsumers(keys, ownThreads) }
	case "delayed at random, then all due":
		handled = count / 5
		run = func() time.Duration { return delayed(keys[:handled]) }
	default:
		return
	}
	best := 0.0
	for range rounds {
		best = max(best, float64(handled)/run().Seconds()/1e6)
	}
	fmt.Printf("%.2f\n", best)
}

func backlog[T comparable](keys []T) time.Duration {
	queue := workqueue.NewTyped[T]()
	defer queue.ShutDown()
	start := time.Now()
	for _, key := range keys {
		queue.Add(key)
	}
	for range keys {
		take(queue)
	}
	return time.Since(start)
}

func oneAtATime[T comparable](keys []T) time.Duration {
	queue := workqueue.NewTyped[T]()
	defer queue.ShutDown()
	start := time.Now()
	for _, key := range keys {
		queue.Add(key)
		take(queue)
	}
	return time.Since(start)
}

func producersAndConsumers[T comparable](keys []T, ownThreads bool) time.Duration {
	queue := workqueue.NewTyped[T]()
	var producers, consumers sync.WaitGroup
	start := time.Now()
	for part := range 4 {
		consumers.Go(func() {
			hold(ownThreads)
			for take(queue) {
			}
		})
		producers.Go(func() {
			hold(ownThreads)
			for _, key := range keys[part*count/4 : (part+1)*count/4] {
				queue.Add(key)
			}
		})
	}
	producers.Wait()
	queue.ShutDown()
	consumers.Wait()
	return time.Since(start)
}

func everyone[T comparable](keys []T, ownThreads bool) time.Duration {
	queue := workqueue.NewTyped[T]()
	defer queue.ShutDown()
	var threads sync.WaitGroup
	start := time.Now()
	for part := range 8 {
		threads.Go(func() {
			hold(ownThreads)
			for _, key := range keys[part*count/8 : (part+1)*count/8] {
				queue.Add(key)
				take(queue)
			}
		})
	}
	threads.Wait()
	return time.Since(start)
}

func delayed[T comparable](keys []T) time.Duration {
	queue := workqueue.NewTypedDelayingQueue[T]()
	defer queue.ShutDown()
	start := time.Now()
	for i, key := range keys {
		queue.AddAfter(key, time.Duration(1+uint64(i)*0x9E3779B97F4A7C15%1_000_000))
	}
	for range keys {
		take(queue)
	}
	return time.Since(start)
}

// hold gives the goroutine a thread of its own, if it is to have one.
func hold(ownThread bool) {
	if ownThread {
		runtime.LockOSThread()
	}
}

// take processes one key, and returns false once the queue is shut down and empty.
func take[T comparable](queue workqueue.TypedInterface[T]) bool {
	key, shutDown := queue.Get()
	if !shutDown {
		queue.Done(key)
	}
	return !shutDown
}
