// The description that the service gives of itself, to be read by people.
import { el, problem, themeButton } from "./dom.js";

const main = document.getElementById("main");

function resolved(schema, all, depth = 0) {
  if (!schema || typeof schema !== "object" || depth > 6) return schema;
  if (schema.$ref) return resolved(all.components.schemas[schema.$ref.split("/").at(-1)], all, depth + 1);
  if (Array.isArray(schema)) return schema.map((part) => resolved(part, all, depth + 1));
  return Object.fromEntries(Object.entries(schema).filter(([name]) => name !== "title").map(([name, part]) => [name, resolved(part, all, depth + 1)]));
}

// A schema in a few words: "list of list of number".
function inWords(schema) {
  if (!schema) return "anything";
  if (schema.anyOf) return schema.anyOf.map(inWords).filter((text) => text !== "null").join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.type === "array") return `list of ${inWords(schema.items)}`;
  return schema.format === "binary" ? "bytes" : schema.type ?? "anything";
}

function properties(schema) {
  if (!schema?.properties) return el("p", {}, inWords(schema));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Fields of the body" }, el("table", {},
    el("thead", {}, el("tr", {}, ["Name", "Type", "Default", "What it is"].map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, Object.entries(schema.properties).map(([name, part]) => el("tr", {},
      el("th", { scope: "row" }, el("code", {}, name)), el("td", {}, inWords(part)),
      el("td", {}, schema.required?.includes(name) ? "required" : part.default === undefined ? "–" : JSON.stringify(part.default)),
      el("td", {}, part.description ?? ""))))));
}

function route(path, method, told, all) {
  const body = told.requestBody?.content ?? {};
  return el("details", { class: "card route" },
    el("summary", {}, el("span", { class: "method" }, method.toUpperCase()), el("code", {}, path), el("span", {}, told.description?.split("\n")[0] ?? told.summary)),
    el("div", {},
      told.description?.includes("\n") ? el("p", {}, told.description.split("\n").slice(1).join(" ")) : null,
      told.parameters?.length ? el("h3", {}, "Parameters") : null,
      told.parameters?.length ? el("ul", {}, told.parameters.map((parameter) => el("li", {},
        el("code", {}, parameter.name), ` in the ${parameter.in}${parameter.required ? ", required" : ""} `,
        inWords(resolved(parameter.schema, all)),
        parameter.schema.default === undefined ? "" : `, ${JSON.stringify(parameter.schema.default)} by default`))) : null,
      Object.entries(body).slice(0, 1).map(([kind, { schema }]) => [el("h3", {}, `Body, ${Object.keys(body).join(" or ")}`),
        properties(resolved(schema, all))]).flat(),
      el("h3", {}, "Answers"),
      el("ul", {}, Object.entries(told.responses).map(([status, answer]) => el("li", {}, el("code", {}, status), ` ${answer.description}`)))));
}

async function show() {
  const all = JSON.parse((await (await fetch("/openapi.json")).text()).replaceAll("``", ""));
  document.getElementById("summary").textContent = `version ${all.info.version}`;
  main.replaceChildren(
    el("h1", { tabindex: -1 }, "API"),
    el("p", {}, "Everything the page does, and more, over HTTP. For programs: ", el("a", { href: "/openapi.json" }, "openapi.json"), "."),
    ...Object.entries(all.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, told]) => route(path, method, told, all))));
}

themeButton();
show().catch((error) => main.replaceChildren(problem(error.message)));
