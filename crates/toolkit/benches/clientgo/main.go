// client-go, measured beside this toolkit: the benchmarks of ../queue.rs and ../informer start it where Go can build it.
//
//	clientgo queue KEYS SHAPE          the work queue
//	clientgo client NAME KUBECONFIG    a cache or a controller against a server
package main

import (
	"fmt"
	"os"
	"time"
)

var begun = time.Now()

func main() {
	var err error
	switch {
	case len(os.Args) == 4 && os.Args[1] == "queue":
		queue(os.Args[2], os.Args[3])
	case len(os.Args) == 4 && os.Args[1] == "client":
		err = client(os.Args[2], os.Args[3])
	default:
		err = fmt.Errorf("unknown arguments %s", os.Args)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
