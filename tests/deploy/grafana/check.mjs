// `node check.mjs DASHBOARD...`: prints what Grafana's types do not allow, one line each; status 1 if there is any.
import { readFileSync } from "node:fs";
import Ajv from "ajv";
import { createGenerator } from "ts-json-schema-generator";

const schema = createGenerator({
  path: new URL("dashboard.ts", import.meta.url).pathname,
  type: "CheckedDashboard",
  tsconfig: new URL("tsconfig.json", import.meta.url).pathname,
  skipTypeCheck: true,
  additionalProperties: false,
  expose: "none",
}).createSchema("CheckedDashboard");
const validate = new Ajv({ strict: false, discriminator: false, allErrors: false, verbose: false }).compile(schema);

for (const path of process.argv.slice(2)) {
  const dashboard = JSON.parse(readFileSync(path, "utf8"));
  if (!validate(dashboard)) {
    process.exitCode = 1;
    for (const error of validate.errors) {
      console.log(`${path}${error.instancePath}: ${error.message} ${JSON.stringify(error.params)}`);
    }
  }
}
