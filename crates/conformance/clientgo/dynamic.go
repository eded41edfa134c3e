package main

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
)

var dynamicChecks = []check{
	{"a definition is served at once and its objects live", definitionIsServed},
	{"dynamic informers follow custom resources", dynamicInformersFollow},
	{"metadata clients read metadata alone", metadataAlone},
}

var (
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	knobs       = schema.GroupVersionResource{Group: "clientgo.example.dev", Version: "v1", Resource: "knobs"}
)

func definition() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": "knobs.clientgo.example.dev"},
		"spec": map[string]any{
			"group": knobs.Group,
			"scope": "Namespaced",
			"names": map[string]any{"plural": "knobs", "singular": "knob", "kind": "Knob"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object",
					"properties": map[string]any{
						"spec": map[string]any{"type": "object", "properties": map[string]any{
							"turns": map[string]any{"type": "integer", "minimum": int64(0)},
							"mode":  map[string]any{"type": "string", "default": "soft"},
						}},
						"status": map[string]any{"type": "object", "properties": map[string]any{"seen": map[string]any{"type": "boolean"}}},
					},
				}},
			}},
		},
	}}
}

func knob(name string, turns int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "clientgo.example.dev/v1",
		"kind":       "Knob",
		"metadata":   map[string]any{"name": name},
		"spec":       map[string]any{"turns": turns},
	}}
}

func isEstablished(object *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, condition := range conditions {
		if fields, isMap := condition.(map[string]any); isMap && fields["type"] == "Established" && fields["status"] == "True" {
			return true
		}
	}
	return false
}

func definitionIsServed(ctx context.Context, w *world) error {
	all := w.dynamic.Resource(definitions)
	if _, err := all.Create(ctx, definition(), metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	established := func() (bool, error) {
		read, err := all.Get(ctx, "knobs.clientgo.example.dev", metav1.GetOptions{})
		return err == nil && isEstablished(read), err
	}
	if err := until(ctx, "the definition is established", established); err != nil {
		return err
	}
	own := w.dynamic.Resource(knobs).Namespace(w.namespace)
	made, err := own.Create(ctx, knob("one", 1), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	mode, _, _ := unstructured.NestedString(made.Object, "spec", "mode")
	if err := wanted("a default", mode, "soft"); err != nil {
		return err
	}
	_, err = own.Create(ctx, knob("wrong", -1), metav1.CreateOptions{})
	if err := refused("a value below its minimum", err, apierrors.IsInvalid); err != nil {
		return err
	}
	applied, err := own.Apply(ctx, "one", knob("one", 5), metav1.ApplyOptions{FieldManager: "clientgo", Force: true})
	if err != nil {
		return err
	}
	if err := wanted("generation", applied.GetGeneration(), 2); err != nil {
		return err
	}
	if err := unstructured.SetNestedField(applied.Object, true, "status", "seen"); err != nil {
		return err
	}
	after, err := own.UpdateStatus(ctx, applied, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	return wanted("generation after a write of the status", after.GetGeneration(), 2)
}

func dynamicInformersFollow(ctx context.Context, w *world) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(w.dynamic, time.Hour, w.namespace, nil)
	informer := factory.ForResource(knobs).Informer()
	var seen counts
	if _, err := informer.AddEventHandler(seen.handler()); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer stop()
	if err := wanted("informers synced", cache.WaitForCacheSync(ctx.Done(), informer.HasSynced), true); err != nil {
		return err
	}
	own := w.dynamic.Resource(knobs).Namespace(w.namespace)
	if _, err := own.Create(ctx, knob("two", 2), metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := own.Delete(ctx, "two", metav1.DeleteOptions{}); err != nil {
		return err
	}
	return until(ctx, "handlers were told", func() (bool, error) { return seen.told()[2] == 1, nil })
}

func metadataAlone(ctx context.Context, w *world) error {
	client, err := metadata.NewForConfig(w.config)
	if err != nil {
		return err
	}
	for _, resource := range []schema.GroupVersionResource{knobs, {Version: "v1", Resource: "serviceaccounts"}} {
		list, err := client.Resource(resource).Namespace(w.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("%s: %w", resource.Resource, err)
		}
		if err := wanted(resource.Resource, len(list.Items) > 0 && list.Items[0].UID != "", true); err != nil {
			return err
		}
	}
	return nil
}
