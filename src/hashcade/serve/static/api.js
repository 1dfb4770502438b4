// The description that the service gives of itself, to be read and tried by people.
import { el, problem, themeButton } from "./dom.js";
import { curlOf, exampleOf, exampleValues, pythonOf } from "./api_examples.js";

const main = document.getElementById("main");
const DEEPEST = 3;  // levels of an answer that are listed

const named = (schema, all) => schema?.$ref ? all.components.schemas[schema.$ref.split("/").at(-1)] : schema;
const alternatives = (schema) => schema.anyOf?.filter((part) => part.type !== "null") ?? [schema];

// A schema in a few words: "list of list of number".
function inWords(given, all) {
  const schema = named(given, all);
  if (!schema) return "anything";
  if (schema.anyOf) return schema.anyOf.map((part) => inWords(part, all)).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${inWords(schema.items, all)}`;
  return schema.format === "binary" ? "bytes" : schema.type ?? "anything";
}

// The fields of a schema as rows; those of objects within it under "name." or "name[].".
function fieldRows(given, all, before = "", depth = 1) {
  const schema = named(given, all);
  return Object.entries(schema?.properties ?? {}).flatMap(([name, part]) => {
    const row = { name: before + name, part, required: schema.required?.includes(name) ?? false };
    let [inner, mark] = [named(alternatives(named(part, all))[0], all), "."];
    while (inner?.type === "array") [inner, mark] = [named(inner.items, all), `[]${mark}`];
    return depth < DEEPEST ? [row, ...fieldRows(inner, all, `${before}${name}${mark}`, depth + 1)] : [row];
  });
}

function fieldTable(schema, all, title, withDefaults) {
  const rows = fieldRows(schema, all);
  if (!rows.length) return el("p", {}, inWords(schema, all));
  const heads = withDefaults ? ["Name", "Type", "Default", "What it is"] : ["Name", "Type", "What it is"];
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title }, el("table", {},
    el("thead", {}, el("tr", {}, heads.map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, rows.map(({ name, part, required }) => el("tr", {},
      el("th", { scope: "row" }, el("code", {}, name)), el("td", {}, inWords(part, all)),
      withDefaults ? el("td", {}, required ? "required" : part.default === undefined ? "–" : JSON.stringify(part.default)) : null,
      el("td", {}, named(part, all)?.description ?? part.description ?? ""))))));
}

function parameterTable(parameters, all) {
  const properties = Object.fromEntries(parameters.map(({ name, schema, description }) => [name, { ...schema, description: description ?? schema.description }]));
  const required = parameters.filter((parameter) => parameter.required).map(({ name }) => name);
  return fieldTable({ properties, required }, all, "Parameters", true);
}

// -- trying --------------------------------------------------------------------------------------

function tryForm(example, id) {
  const place = el("input", { type: "text", id: `${id}-address`, value: example.address, spellcheck: "false" });
  const body = example.body ? el("textarea", { id: `${id}-body`, rows: 4, spellcheck: "false" }, JSON.stringify(example.body)) : null;
  const file = example.file ? el("input", { type: "file", id: `${id}-file`, accept: "image/*", required: true }) : null;
  const answer = el("div", { role: "status" });
  const send = async (event) => {
    event.preventDefault();
    const options = { method: example.method };
    if (body) Object.assign(options, { body: body.value, headers: { "Content-Type": "application/json" } });
    if (file) Object.assign(options, { body: file.files[0], headers: { "Content-Type": "application/octet-stream" } });
    const start = performance.now();
    try {
      const came = await fetch(place.value, options);
      const content = example.picture && came.ok
        ? el("img", { src: URL.createObjectURL(await came.blob()), alt: "The picture of the item", width: 96, height: 96 })
        : el("pre", { class: "answer", tabindex: 0, role: "region", "aria-label": "Answer" }, formatted(await came.text()));
      answer.replaceChildren(el("p", { class: "note" }, `${came.status} ${came.statusText}, ${Math.round(performance.now() - start)} ms`), content);
    } catch (error) {
      answer.replaceChildren(problem(error.message));
    }
  };
  return el("form", { class: "try", onsubmit: send },
    el("p", { class: "row" }, el("label", { for: place.id }, example.method), place, el("button", { type: "submit" }, "Send")),
    body ? [el("label", { for: body.id }, "Body"), body] : null,
    file ? el("p", { class: "row" }, el("label", { for: file.id }, "Image"), file) : null,
    answer);
}

// JSON with a line per field; numbers of a vector stay on one line.
function formatted(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2).replace(/\[\s+([-\d.e+,\s]+?)\s+\]/g, (_, inner) => `[${inner.replace(/\s+/g, " ")}]`).slice(0, 20000);
  } catch {
    return text.slice(0, 20000);
  }
}

function snippet(title, text) {
  const copy = el("button", { type: "button", class: "quiet", "aria-label": `Copy: ${title}`, onclick: async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = "Copied";
  } }, "Copy");
  return el("div", {}, el("div", { class: "row" }, el("h3", { class: "grow" }, title), copy),
    el("pre", { tabindex: 0, role: "region", "aria-label": title }, text));
}

function examples(route, values, id) {
  const example = values && exampleOf(route, values);
  const python = values && pythonOf(route, example);
  return [
    example && !example.changes ? [el("h3", {}, "Try it"), tryForm(example, id)] : null,
    example?.changes ? el("p", { class: "note" }, "It changes the table or the service: the page does not send it.") : null,
    example || python ? el("div", { class: "snippets" }, example ? snippet("curl", curlOf(example)) : null, python ? snippet("Python", python) : null) : null,
  ].flat();
}

// -- the page --------------------------------------------------------------------------------------

function routeCard(path, method, reply, all, values) {
  const route = `${method.toUpperCase()} ${path}`, id = route.replace(/\W+/g, "-");
  const body = reply.requestBody?.content ?? {};
  const [firstKind] = Object.keys(body);
  const answer = reply.responses["200"], kind = Object.keys(answer.content ?? {})[0];
  const [summary, ...rest] = (reply.description ?? reply.summary).split("\n");
  const card = el("details", { class: "card route", id },
    el("summary", {}, el("span", { class: "method" }, method.toUpperCase()), el("code", {}, path), el("span", {}, summary)));
  const fill = () => card.append(el("div", {},
    rest.length ? el("p", {}, rest.join(" ")) : null,
    examples(route, values, id),
    reply.parameters?.length ? [el("h3", {}, "Parameters"), parameterTable(reply.parameters, all)] : null,
    firstKind ? [el("h3", {}, `Body, ${Object.keys(body).join(" or ")}`), fieldTable(body[firstKind].schema, all, "Fields of the body", true)] : null,
    el("h3", {}, `Answer, ${kind ?? "empty"}`),
    kind === "application/json" ? fieldTable(answer.content[kind].schema, all, "Fields of the answer", false) : el("p", {}, answer.description),
    el("h3", {}, "Other statuses"),
    el("ul", {}, Object.entries(reply.responses).filter(([status]) => status !== "200").map(([status, { description }]) =>
      el("li", {}, el("code", {}, status), ` ${description}`)))));
  card.addEventListener("toggle", fill, { once: true });  // a closed card costs nothing
  return card;
}

async function show() {
  const [text, values] = await Promise.all([fetch("/openapi.json").then((answer) => answer.text()), exampleValues().catch(() => null)]);
  const all = JSON.parse(text.replaceAll("``", ""));
  document.getElementById("summary").textContent = `version ${all.info.version}`;
  main.replaceChildren(
    el("h1", { tabindex: -1 }, "API"),
    el("p", {}, "Everything the page does, and more, over HTTP. Open a route to try it on this table. For programs: ", el("a", { href: "/openapi.json" }, "openapi.json"), "."),
    ...Object.entries(all.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, reply]) => routeCard(path, method, reply, all, values))));
}

themeButton();
show().catch((error) => main.replaceChildren(problem(error.message)));
