// Reads resources as JSON and prints what is wrong with each, by its place in the list. Values are checked by the
// packages' validators; fields that a kind does not have by TypeScript, which refuses them in a literal of its type.
import { readFileSync } from "node:fs";
import ts from "typescript";

const modules = {
  HTTPRoute: "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1",
  ScaledObject: "@kubernetes-models/keda/keda.sh/v1alpha1",
  PodMonitor: "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1",
  PrometheusRule: "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1",
};
const resources = JSON.parse(readFileSync(0, "utf8"));

const sources = new Map(
  resources.map((resource, index) => [
    `${import.meta.dirname}/${index}.ts`,
    `import type { I${resource.kind} } from "${modules[resource.kind]}/${resource.kind}";
     export const it: I${resource.kind} = ${JSON.stringify(resource)};`,
  ]),
);
const options = {
  noEmit: true,
  strict: true,
  skipLibCheck: true,
  types: [],
  target: ts.ScriptTarget.ES2022,
  module: ts.ModuleKind.ESNext,
  moduleResolution: ts.ModuleResolutionKind.Bundler,
};
const host = ts.createCompilerHost(options);
const { getSourceFile, fileExists } = host;
host.fileExists = (name) => sources.has(name) || fileExists(name);
host.getSourceFile = (name, target) =>
  sources.has(name) ? ts.createSourceFile(name, sources.get(name), target) : getSourceFile(name, target);
const names = [...sources.keys()];
for (const found of ts.getPreEmitDiagnostics(ts.createProgram(names, options, host))) {
  console.log(`${names.indexOf(found.file?.fileName)}: ${ts.flattenDiagnosticMessageText(found.messageText, " ")}`);
}

for (const [index, resource] of resources.entries()) {
  const { [resource.kind]: Model } = await import(`${modules[resource.kind]}/${resource.kind}`);
  try {
    new Model(resource).validate();
  } catch (error) {
    console.log(`${index}: ${error.message}`);
  }
}
