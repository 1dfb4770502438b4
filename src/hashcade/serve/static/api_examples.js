// Examples of requests that fit the table that is served, and how to send them from elsewhere.
import { ask, context } from "./dom.js";

// What the examples are made of: an item of the table, and a vector to search with.
export async function exampleValues() {
  context.stats = await ask("/v1/stats?classes=false");
  const { items } = await ask("/v1/items?limit=1");
  if (!items.length) return { id: 0, label: "cat", bucket: 0, vector: [0.1, 0.2], query: { vectors: [[0.1, 0.2]] } };
  const item = await ask(`/v1/items/${encodeURIComponent(items[0].id)}?vector=true`);
  const vector = item.vector.map((value) => Number(value.toPrecision(4)));
  // A model that takes vectors of this size finds their buckets itself.
  const { model, item_shape: shape, index } = context.stats;
  const takesVectors = model && shape.length === 1 && shape[0] === index.dim;
  const query = takesVectors ? { vectors: [vector] } : { vectors: [vector], bucket_ids: [item.bucket_ids] };
  return { id: item.id, label: item.label, bucket: item.bucket_ids[0], path: item.paths[0].slice(0, 1), vector, query };
}

const single = ({ vectors, ...more }) => ({
  vector: vectors[0], ...Object.fromEntries(Object.entries(more).map(([name, rows]) => [name, rows[0]])),
});

// Route: what to ask for. `changes`: it is shown, and not sent from the page. `file`: the body is an image.
export function exampleOf(route, { id, label, bucket, path = [], query }) {
  const where = label === undefined || label === null ? {} : { where: JSON.stringify({ label }) };
  const examples = {
    "POST /v1/search": { body: { ...query, n_neighbors: 3 } },
    "POST /v1/explain": { body: { ...single(query), n_neighbors: 3 } },
    "POST /v1/search/image": { file: true, query: { n_neighbors: 3 } },
    "POST /v1/explain/image": { file: true, query: { n_neighbors: 3 } },
    "GET /v1/search/item/{item_id}": { query: { n_neighbors: 3, ...where } },
    "GET /v1/explain/item/{item_id}": { query: { n_neighbors: 3 } },
    "GET /v1/items": { query: { limit: 2, ...where } },
    "GET /v1/items/{item_id}": {},
    "GET /v1/classes": { query: { contains: label === null ? "" : `${label ?? ""}`.slice(0, 3), limit: 5 } },
    "GET /v1/tree": { query: { path: path.join(".") } },
    "GET /v1/buckets/{bucket_id}": { query: { limit: 3 } },
    "GET /v1/stats": { query: { classes: "false" } },
    "GET /health": {}, "GET /ready": {}, "GET /metrics": {},
    "POST /v1/items": { changes: true, body: { ...query, ...(typeof id === "string" ? { ids: ["new"] } : {}), payload: [{ text: "new" }] } },
    "POST /v1/items/remove": { changes: true, body: { where: { text: "new" } } },
    "POST /v1/items/image": { changes: true, file: true },
    "DELETE /v1/items/{item_id}": { changes: true },
    "POST /v1/save": { changes: true }, "POST /v1/reload": { changes: true },
  };
  if (context.stats.pictures) examples["GET /v1/pictures/{item_id}"] = { picture: true };
  const example = examples[route];
  if (!example || (example.file && context.stats.model !== "images")) return null;
  const [method, pattern] = route.split(" ");
  const place = pattern.replace("{item_id}", encodeURIComponent(id)).replace("{bucket_id}", bucket);
  const parameters = new URLSearchParams(example.query ?? {});
  return { method, ...example, address: parameters.size ? `${place}?${parameters}` : place };
}

// -- snippets ------------------------------------------------------------------------------------

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function curlOf({ method, address, body, file }) {
  const parts = ["curl"];
  if (method !== "GET" && !body && !file) parts.push(`-X ${method}`);
  if (file) parts.push("-F file=@query.jpg");
  if (body) parts.push("-H 'Content-Type: application/json' \\\n  -d", quoted(JSON.stringify(body)), "\\\n ");
  return [...parts, quoted(location.origin + address)].join(" ");
}

const CLIENT = {
  "POST /v1/search": "matches = client.search(queries, 3)  # an array (q, dim)\n    print(matches.ids, matches.distances)",
  "POST /v1/search/binary": "matches = client.search(queries, 10, where={\"year\": {\">=\": 2020}})",
  "POST /v1/items": "ids = client.add(vectors, payload=[{\"text\": \"new\"}])",
  "POST /v1/items/remove": "client.remove(where={\"text\": \"new\"})",
};

// A value of JSON as Python writes it.
function inPython(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(inPython).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, part]) => `${JSON.stringify(name)}: ${inPython(part)}`).join(", ")}}`;
  return JSON.stringify(value);
}

export function pythonOf(route, example) {
  let line = CLIENT[route];
  if (!line && !example) return null;
  if (!line) {
    const { method, address, body, file, picture } = example;
    const where = `"${method}", ${JSON.stringify(address)}`;
    if (file) line = `photo = open("query.jpg", "rb").read()\n    answer = client.request(${where}, photo, "image/jpeg")`;
    else if (picture || address === "/metrics") line = `content = client.request(${where}, None, "")`;
    else line = `answer = client.json(${where}${body ? `, ${inPython(body)}` : ""})`;
  }
  return `from hashcade.serve import Client\n\nwith Client("${location.origin}") as client:\n    ${line}`;
}
