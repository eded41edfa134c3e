// Structs writes the table of the structs with which kube-apiserver calculates, as they show in its messages.
//
// In: the Go types of the Kubernetes that go.mod names, found by reflection. Out: crates/apiserver/src/types/internal/table.rs, on standard output.
// Run it in the folder above, whenever that version changes: go run ./structs > ../../apiserver/src/types/internal/table.rs
package main

import (
	"fmt"
	"log"
	"path"
	"reflect"
	"sort"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/kubernetes/pkg/apis/policy"
	"k8s.io/kubernetes/pkg/apis/rbac"
	resources "k8s.io/kubernetes/pkg/apis/resource"
	"k8s.io/kubernetes/pkg/apis/storage"
)

// What messages show, and all that it holds: as the server has it, and as clients do.
var roots = [][2]any{
	{core.PodTemplateSpec{}, corev1.PodTemplateSpec{}},
	{core.PersistentVolumeClaimSpec{}, corev1.PersistentVolumeClaimSpec{}},
	{core.PersistentVolumeSource{}, corev1.PersistentVolumeSource{}},
	{core.VolumeNodeAffinity{}, corev1.VolumeNodeAffinity{}},
	{core.NodeAddress{}, corev1.NodeAddress{}},
	{core.Taint{}, corev1.Taint{}},
	{core.ServicePort{}, corev1.ServicePort{}},
	{core.EventSource{}, corev1.EventSource{}},
	{core.ObjectReference{}, corev1.ObjectReference{}},
	{core.ScopeSelector{}, corev1.ScopeSelector{}},
	{apps.DeploymentStrategy{}, appsv1.DeploymentStrategy{}},
	{apps.DaemonSetUpdateStrategy{}, appsv1.DaemonSetUpdateStrategy{}},
	{apps.StatefulSetUpdateStrategy{}, appsv1.StatefulSetUpdateStrategy{}},
	{batch.PodFailurePolicy{}, batchv1.PodFailurePolicy{}},
	{batch.SuccessPolicy{}, batchv1.SuccessPolicy{}},
	{certificates.CertificateSigningRequestCondition{}, certificatesv1.CertificateSigningRequestCondition{}},
	{networking.ParentReference{}, networkingv1.ParentReference{}},
	{networking.ServiceCIDRSpec{}, networkingv1.ServiceCIDRSpec{}},
	{policy.PodDisruptionBudgetSpec{}, policyv1.PodDisruptionBudgetSpec{}},
	{rbac.RoleRef{}, rbacv1.RoleRef{}},
	{resources.ResourceClaimSpec{}, resourcev1.ResourceClaimSpec{}},
	{resources.ResourceClaimTemplateSpec{}, resourcev1.ResourceClaimTemplateSpec{}},
	{storage.VolumeAttachmentSpec{}, storagev1.VolumeAttachmentSpec{}},
	{storage.CSINodeDriver{}, storagev1.CSINodeDriver{}},
}

// Structs by name, each a row of the table.
var rows = map[string]string{}

func main() {
	log.SetFlags(0)
	for _, root := range roots {
		add(reflect.TypeOf(root[0]), reflect.TypeOf(root[1]))
	}
	names := make([]string, 0, len(rows))
	for name := range rows {
		names = append(names, name)
	}
	sort.Strings(names)
	fmt.Println("//! The structs with which kube-apiserver 1.36.4 calculates, made by `go run ./structs` in `crates/conformance/upstream`: not to be edited.")
	fmt.Println()
	fmt.Println("use super::model::{Holds::*, Item::*, Struct, above, m, s};")
	fmt.Println()
	fmt.Println("/// The structs, sorted by name.")
	fmt.Println("pub(super) static STRUCTS: &[Struct] = &[")
	for _, name := range names {
		fmt.Printf("    s(%q, &[%s]),\n", name, rows[name])
	}
	fmt.Println("];")
}

// The name of a struct: its package and its own.
func name(t reflect.Type) string {
	return path.Base(t.PkgPath()) + "." + t.Name()
}

func add(t, published reflect.Type) {
	if _, known := rows[name(t)]; known {
		return
	}
	rows[name(t)] = ""
	var members []string
	list(t, published, &members)
	rows[name(t)] = strings.Join(members, ", ")
}

// The members of a struct as Go writes them: those of an embedded struct in its place.
func list(t, published reflect.Type, members *[]string) {
	for i := range t.NumField() {
		field := t.Field(i)
		if field.Tag.Get("json") != "" {
			log.Fatalf("%s.%s has a name of its own for JSON", name(t), field.Name)
		}
		if field.Anonymous && field.Type != reflect.TypeFor[metav1.ObjectMeta]() {
			list(field.Type, published, members)
			continue
		}
		row := "m"
		there, found := published.FieldByName(field.Name)
		if !found && t == reflect.TypeFor[core.PodSecurityContext]() {
			row = "above"
			there, found = reflect.TypeFor[corev1.PodSpec]().FieldByName(field.Name)
		}
		if !found {
			log.Fatalf("clients know no %s.%s", name(t), field.Name)
		}
		json, _, _ := strings.Cut(there.Tag.Get("json"), ",")
		what := "Inline"
		if !field.Anonymous {
			what = holds(field.Type, there.Type)
		}
		*members = append(*members, fmt.Sprintf("%s(%q, %q, %s)", row, field.Name, json, what))
	}
}

// What a member holds, and so what stands there when nothing is given.
func holds(t, published reflect.Type) string {
	if published.Kind() == reflect.Pointer {
		published = published.Elem()
	}
	switch t.Kind() {
	case reflect.Pointer:
		if t.Elem() == reflect.TypeFor[core.PodSecurityContext]() {
			// The server makes one when it reads a pod, because it holds what clients have one level up.
			return "One(" + item(t.Elem(), published) + ")"
		}
		return "Maybe(" + item(t.Elem(), published) + ")"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "Maybe(Plain)"
		}
		return "List(" + item(t.Elem(), published.Elem()) + ")"
	case reflect.Map:
		return "Map(" + item(t.Elem(), published.Elem()) + ")"
	default:
		return "One(" + item(t, published) + ")"
	}
}

func item(t, published reflect.Type) string {
	switch t {
	case reflect.TypeFor[resource.Quantity]():
		return "Quantity"
	case reflect.TypeFor[intstr.IntOrString]():
		return "Number"
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime](), reflect.TypeFor[runtime.RawExtension]():
		return "Plain"
	}
	switch t.Kind() {
	case reflect.String:
		return "Text"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "Number"
	case reflect.Bool:
		return "Bool"
	case reflect.Struct:
		if strings.HasPrefix(t.PkgPath(), "k8s.io/apimachinery/") {
			return fmt.Sprintf("Published(%q)", t.String())
		}
		add(t, published)
		return fmt.Sprintf("Internal(%q)", name(t))
	}
	log.Fatalf("the table has no word for %s", t)
	return ""
}
