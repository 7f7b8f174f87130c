const canTry = document.getElementById("elsewhere").hidden;
// Routes are relative to this page, also where a proxy puts it below a path. Else Swagger would ask the host's root.
const server = { url: new URL(".", location.href).href.replace(/\/$/, "") };
const relativeToThisPage = () => ({
  statePlugins: { spec: { wrapActions: { updateJsonSpec: (update) => (spec) => update({ ...spec, servers: [server] }) } } },
});

// validatorUrl null: or the page would send this document's address to a validator on another origin.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  presets: [SwaggerUIBundle.presets.apis],
  plugins: canTry ? [relativeToThisPage] : [],
  deepLinking: true,
  validatorUrl: null,
  ...(!canTry && { supportedSubmitMethods: [] }),
});
