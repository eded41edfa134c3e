// Package teams is a webhook as a project with controller-runtime has it: every object has a team.
package teams

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Webhook is the Defaulter and Validator of a kind.
type Webhook[T client.Object] struct {
	Kind schema.GroupKind
}

// Default adds the label team.
func (Webhook[T]) Default(_ context.Context, object T) error {
	labels := object.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	if _, found := labels["team"]; !found {
		labels["team"] = "none"
	}
	object.SetLabels(labels)
	return nil
}

func (w Webhook[T]) check(object T) (admission.Warnings, error) {
	switch object.GetLabels()["team"] {
	case "denied":
		return nil, fmt.Errorf("team %q works no longer", "denied")
	case "":
		path := field.NewPath("metadata", "labels").Key("team")
		errors := field.ErrorList{field.Required(path, "every "+w.Kind.Kind+" has a team")}
		return nil, apierrors.NewInvalid(w.Kind, object.GetName(), errors)
	case "none":
		return admission.Warnings{"nobody is responsible"}, nil
	}
	return nil, nil
}

// ValidateCreate checks the team.
func (w Webhook[T]) ValidateCreate(_ context.Context, object T) (admission.Warnings, error) {
	return w.check(object)
}

// ValidateUpdate checks the team.
func (w Webhook[T]) ValidateUpdate(_ context.Context, _, object T) (admission.Warnings, error) {
	return w.check(object)
}

// ValidateDelete denies the deletion of objects of one team.
func (w Webhook[T]) ValidateDelete(_ context.Context, object T) (admission.Warnings, error) {
	if object.GetLabels()["team"] == "kept" {
		return nil, fmt.Errorf("%ss of team %q are kept", w.Kind.Kind, "kept")
	}
	return nil, nil
}
