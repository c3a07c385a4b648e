// Package k8s runs kvpods against a real Kubernetes API server: kube-apiserver and
// etcd, which this module pins and the go command builds, so that nothing is installed.
// It is a module of its own, so that the product's go.mod carries none of it.
//
//	make test-k8s
//
// k8s.io/kubernetes replaces its staging modules by folders of its own, which no other
// module can use; here each is replaced by what was published of it.
package k8s
