// validatorUrl null: or the page would send this document's address to a validator on another origin.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  presets: [SwaggerUIBundle.presets.apis],
  deepLinking: true,
  validatorUrl: null,
  ...(!document.getElementById("elsewhere").hidden && { supportedSubmitMethods: [] }),
});
