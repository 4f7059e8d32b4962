"""The HTTP API of a node: routes, validation, the served OpenAPI document, and the process around it."""
