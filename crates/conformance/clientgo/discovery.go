package main

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"
)

var discoveryChecks = []check{
	{"the server tells its version", serverTellsItsVersion},
	{"discovery lists every group at once", discoveryListsEveryGroup},
	{"kinds map to resources and short names expand", kindsMapToResources},
	{"openapi documents can be read", openapiCanBeRead},
}

func serverTellsItsVersion(_ context.Context, w *world) error {
	version, err := w.client.Discovery().ServerVersion()
	if err != nil {
		return err
	}
	return wanted("version", version.Major+"."+version.Minor, "1.36")
}

func discoveryListsEveryGroup(_ context.Context, w *world) error {
	groups, resources, err := w.client.Discovery().ServerGroupsAndResources()
	if err != nil {
		return err
	}
	names := make([]string, 0, len(groups))
	for _, group := range groups {
		names = append(names, group.Name)
	}
	for _, name := range []string{"", "apps", "batch", "rbac.authorization.k8s.io", "apiextensions.k8s.io"} {
		if err := wanted("group "+name, slices.Contains(names, name), true); err != nil {
			return err
		}
	}
	deletable := discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete", "watch"}}, resources)
	byGroup, err := discovery.GroupVersionResources(deletable)
	if err != nil {
		return err
	}
	_, found := byGroup[schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}]
	return wanted("deployments can be listed, deleted and watched", found, true)
}

func kindsMapToResources(_ context.Context, w *world) error {
	cached := memory.NewMemCacheClient(w.client.Discovery())
	mapper := restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cached), cached, nil)
	mapping, err := mapper.RESTMapping(schema.GroupKind{Group: "apps", Kind: "Deployment"})
	if err != nil {
		return err
	}
	if err := wanted("resource of Deployment", mapping.Resource.String(), "apps/v1, Resource=deployments"); err != nil {
		return err
	}
	kind, err := mapper.KindFor(schema.GroupVersionResource{Resource: "cm"})
	if err != nil {
		return err
	}
	return wanted("kind of cm", kind.Kind, "ConfigMap")
}

func openapiCanBeRead(_ context.Context, w *world) error {
	paths, err := w.client.Discovery().OpenAPIV3().Paths()
	if err != nil {
		return err
	}
	apps, found := paths["apis/apps/v1"]
	if err := wanted("apps/v1 in the index", found, true); err != nil {
		return err
	}
	if _, err := apps.Schema("application/json"); err != nil {
		return err
	}
	document, err := w.client.Discovery().OpenAPISchema()
	if err != nil {
		return err
	}
	return wanted("form of the older document", document.GetSwagger(), "2.0")
}
