package main

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applyapps "k8s.io/client-go/applyconfigurations/apps/v1"
	applycore "k8s.io/client-go/applyconfigurations/core/v1"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"
)

var applyChecks = []check{
	{"applying makes, changes and gives up fields", applyingOwnsFields},
	{"two appliers of one field conflict unless forced", appliersConflict},
	{"what was applied can be extracted and applied again", appliedCanBeExtracted},
}

func web(name, image string, replicas *int32) *applyapps.DeploymentApplyConfiguration {
	labels := map[string]string{"app": name}
	spec := applyapps.DeploymentSpec().
		WithSelector(applymeta.LabelSelector().WithMatchLabels(labels)).
		WithTemplate(applycore.PodTemplateSpec().WithLabels(labels).
			WithSpec(applycore.PodSpec().WithContainers(applycore.Container().WithName("main").WithImage(image))))
	if replicas != nil {
		spec = spec.WithReplicas(*replicas)
	}
	return applyapps.Deployment(name, "").WithSpec(spec)
}

func applyingOwnsFields(ctx context.Context, w *world) error {
	deployments := w.client.AppsV1().Deployments(w.namespace)
	three := int32(3)
	options := metav1.ApplyOptions{FieldManager: "first"}
	made, err := deployments.Apply(ctx, web("applied", "app:1", &three), options)
	if err != nil {
		return err
	}
	if err := wanted("replicas", *made.Spec.Replicas, 3); err != nil {
		return err
	}
	given, err := deployments.Apply(ctx, web("applied", "app:2", nil), options)
	if err != nil {
		return err
	}
	if err := wanted("replicas given up", *given.Spec.Replicas, 1); err != nil {
		return err
	}
	if err := wanted("image", given.Spec.Template.Spec.Containers[0].Image, "app:2"); err != nil {
		return err
	}
	again, err := deployments.Apply(ctx, web("applied", "app:2", nil), options)
	if err != nil {
		return err
	}
	return wanted("version after applying the same", again.ResourceVersion, given.ResourceVersion)
}

func appliersConflict(ctx context.Context, w *world) error {
	deployments := w.client.AppsV1().Deployments(w.namespace)
	if _, err := deployments.Apply(ctx, web("contested", "app:1", nil), metav1.ApplyOptions{FieldManager: "first"}); err != nil {
		return err
	}
	_, err := deployments.Apply(ctx, web("contested", "app:2", nil), metav1.ApplyOptions{FieldManager: "second"})
	if err := refused("a second applier", err, apierrors.IsConflict); err != nil {
		return err
	}
	forced, err := deployments.Apply(ctx, web("contested", "app:2", nil), metav1.ApplyOptions{FieldManager: "second", Force: true})
	if err != nil {
		return err
	}
	return wanted("image", forced.Spec.Template.Spec.Containers[0].Image, "app:2")
}

func appliedCanBeExtracted(ctx context.Context, w *world) error {
	deployments := w.client.AppsV1().Deployments(w.namespace)
	two := int32(2)
	options := metav1.ApplyOptions{FieldManager: "extractor"}
	made, err := deployments.Apply(ctx, web("extracted", "app:1", &two), options)
	if err != nil {
		return err
	}
	own, err := applyapps.ExtractDeployment(made, options.FieldManager)
	if err != nil {
		return err
	}
	if err := wanted("what was not applied is extracted", own.Spec.Strategy != nil, false); err != nil {
		return err
	}
	if err := wanted("replicas extracted", *own.Spec.Replicas, 2); err != nil {
		return err
	}
	own.Spec.WithReplicas(5)
	after, err := deployments.Apply(ctx, own, options)
	if err != nil {
		return err
	}
	return wanted("replicas", *after.Spec.Replicas, 5)
}
