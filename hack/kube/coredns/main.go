// CoreDNS with the plugins that the test cluster uses, and no others. The stock program has some fifty, among them the
// clients of three clouds and of a tracing service, and takes several times as long to download and to build.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	// The order in which plugins see a query. Upstream has `template` first; here it answers what no other plugin does.
	dnsserver.Directives = []string{"bind", "errors", "hosts", "kubernetes", "template"}
	coremain.Run()
}
