package k8s

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// kinds are the types of what the chart renders.
var kinds = map[string]func() any{
	"v1 ConfigMap":                             func() any { return new(corev1.ConfigMap) },
	"v1 Service":                               func() any { return new(corev1.Service) },
	"v1 ServiceAccount":                        func() any { return new(corev1.ServiceAccount) },
	"apps/v1 Deployment":                       func() any { return new(appsv1.Deployment) },
	"apps/v1 StatefulSet":                      func() any { return new(appsv1.StatefulSet) },
	"policy/v1 PodDisruptionBudget":            func() any { return new(policyv1.PodDisruptionBudget) },
	"networking.k8s.io/v1 NetworkPolicy":       func() any { return new(networkingv1.NetworkPolicy) },
	"autoscaling/v2 HorizontalPodAutoscaler":   func() any { return new(autoscalingv2.HorizontalPodAutoscaler) },
	"rbac.authorization.k8s.io/v1 Role":        func() any { return new(rbacv1.Role) },
	"rbac.authorization.k8s.io/v1 RoleBinding": func() any { return new(rbacv1.RoleBinding) },
}

// elsewhere are kinds whose types are not Kubernetes' own: they are looked at by name only.
var elsewhere = []string{"monitoring.coreos.com/", "gateway.networking.k8s.io/", "inference.networking.k8s.io/"}

// What the chart renders of each values file, and the example, decode strictly into the API's
// own types: a field that is misspelt or in the wrong place is an error, as no API server has it.
func TestManifestsAreOfTheAPIsTypes(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(os.Getenv("KVATLAS_MANIFESTS"), "*.yaml"))
	if err != nil || os.Getenv("KVATLAS_MANIFESTS") == "" {
		t.Skip("skipped: make test-deploy renders the chart and runs this")
	}
	example, err := filepath.Glob("../../deploy/example/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	checked := 0
	for _, file := range append(files, example...) {
		if filepath.Base(file) == "values.yaml" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for doc := range strings.SplitSeq("\n"+string(text), "\n---") {
			var head struct{ APIVersion, Kind string }
			if err := yaml.Unmarshal([]byte(doc), &head); err != nil && !errors.Is(err, io.EOF) {
				t.Fatalf("%s: %v", file, err)
			}
			if head.Kind == "" {
				continue // comments
			}
			name := head.APIVersion + " " + head.Kind
			make, ok := kinds[name]
			if !ok {
				known := false
				for _, prefix := range elsewhere {
					known = known || strings.HasPrefix(name, prefix)
				}
				if !known {
					t.Errorf("%s: %s is of no known kind", file, name)
				}
				continue
			}
			object := make()
			if err := yaml.UnmarshalStrict([]byte(doc), object); err != nil {
				t.Errorf("%s: %s: %v\n%s", file, name, err, doc)
			}
			checked++
			for _, v := range podOf(object).Volumes {
				if v.VolumeSource == (corev1.VolumeSource{}) {
					t.Errorf("%s: %s: volume %s is of nothing", file, name, v.Name)
				}
			}
			if b, ok := object.(*policyv1.PodDisruptionBudget); ok && (b.Spec.Selector == nil || b.Spec.MaxUnavailable == nil || b.Spec.MaxUnavailable.String() == "0") {
				t.Errorf("%s: a disruption budget that lets nothing be moved: %v", file, b.Spec)
			}
		}
	}
	t.Logf("%d objects", checked)
	if checked < 20 {
		t.Errorf("%d objects", checked)
	}
}

// podOf returns what pods an object makes.
func podOf(object any) corev1.PodSpec {
	switch o := object.(type) {
	case *appsv1.Deployment:
		return o.Spec.Template.Spec
	case *appsv1.StatefulSet:
		return o.Spec.Template.Spec
	}
	return corev1.PodSpec{}
}
