package main

// The work queue in the shapes of ../queue.rs. Out: a line for each shape: its name, a tab, and millions of keys a second, the
// best of five runs.

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

const (
	rounds = 5
	count  = 1_000_000
)

func queues() {
	keys := make([]string, count)
	for i := range keys {
		keys[i] = fmt.Sprintf("namespace-%d/name-%d", i%100, i)
	}
	report("backlog", count, func() time.Duration { return backlog(keys) })
	report("one at a time", count, func() time.Duration { return oneAtATime(keys) })
	report("producers and consumers", count, func() time.Duration { return producersAndConsumers(keys) })
	report("everyone", count, func() time.Duration { return everyone(keys) })
	report("new queues", count, func() time.Duration {
		var all time.Duration
		for range count / 100 {
			all += oneAtATime(keys[:100])
		}
		return all
	})
	report("delayed", count/5, func() time.Duration { return delayed(keys[:count/5]) })
}

// report prints the best of several runs.
func report(shape string, handled int, run func() time.Duration) {
	best := 0.0
	for range rounds {
		best = max(best, float64(handled)/run().Seconds()/1e6)
	}
	fmt.Printf("%s\t%.2f\n", shape, best)
}

func backlog(keys []string) time.Duration {
	queue := workqueue.NewTyped[string]()
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

func oneAtATime(keys []string) time.Duration {
	queue := workqueue.NewTyped[string]()
	defer queue.ShutDown()
	start := time.Now()
	for _, key := range keys {
		queue.Add(key)
		take(queue)
	}
	return time.Since(start)
}

func producersAndConsumers(keys []string) time.Duration {
	queue := workqueue.NewTyped[string]()
	var producers, consumers sync.WaitGroup
	start := time.Now()
	for part := range 4 {
		consumers.Go(func() {
			for take(queue) {
			}
		})
		producers.Go(func() {
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

func everyone(keys []string) time.Duration {
	queue := workqueue.NewTyped[string]()
	defer queue.ShutDown()
	var threads sync.WaitGroup
	start := time.Now()
	for part := range 8 {
		threads.Go(func() {
			for _, key := range keys[part*count/8 : (part+1)*count/8] {
				queue.Add(key)
				take(queue)
			}
		})
	}
	threads.Wait()
	return time.Since(start)
}

func delayed(keys []string) time.Duration {
	queue := workqueue.NewTypedDelayingQueue[string]()
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

// take works on one key, and says false once the queue is shut down and empty.
func take(queue workqueue.TypedInterface[string]) bool {
	key, shutDown := queue.Get()
	if !shutDown {
		queue.Done(key)
	}
	return !shutDown
}
