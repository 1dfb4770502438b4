// The description that the service gives of itself, to be read by people.
import { el, problem, themeButton } from "./dom.js";

const main = document.getElementById("main");

function resolved(schema, all, depth = 0) {
  if (!schema || typeof schema !== "object" || depth > 6) return schema;
  if (schema.$ref) return resolved(all.components.schemas[schema.$ref.split("/").at(-1)], all, depth + 1);
  if (Array.isArray(schema)) return schema.map((part) => resolved(part, all, depth + 1));
  return Object.fromEntries(Object.entries(schema).filter(([name]) => name !== "title").map(([name, part]) => [name, resolved(part, all, depth + 1)]));
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
        el("code", {}, JSON.stringify(resolved({ ...parameter.schema, title: undefined }, all)))))) : null,
      Object.entries(body).slice(0, 1).map(([kind, { schema }]) => [el("h3", {}, `Body, ${Object.keys(body).join(" or ")}`),
        el("pre", { tabindex: 0, "aria-label": "Schema of the body" }, JSON.stringify(resolved(schema, all), null, 1))]).flat(),
      el("h3", {}, "Answers"),
      el("ul", {}, Object.entries(told.responses).map(([status, answer]) => el("li", {}, el("code", {}, status), ` ${answer.description}`)))));
}

async function show() {
  const all = await (await fetch("/openapi.json")).json();
  document.getElementById("summary").textContent = `version ${all.info.version}`;
  main.replaceChildren(
    el("h1", { tabindex: -1 }, "API"),
    el("p", {}, "Everything the page does, and more, over HTTP. For programs: ", el("a", { href: "/openapi.json" }, "openapi.json"), "."),
    ...Object.entries(all.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, told]) => route(path, method, told, all))));
}

themeButton();
show().catch((error) => main.replaceChildren(problem(error.message)));
