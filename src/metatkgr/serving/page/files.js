// Facts in files: in, and out again.
import { $, say, show } from "./dom.js";
import { download, post } from "./api.js";

/** Let files be chosen and saved; `done()` is called when facts have come in. */
export function files(done, fail) {
  const add = async (sure) => {
    const [file] = $("upload").files;
    if (!file) return;
    show($("upload-confirm"), false);
    say($("upload-status"), "…");
    try {
      const format = file.name.endsWith(".jsonl") ? "jsonl" : "csv";
      const added = await post("/import", {
        format, text: await file.text(), source: file.name.slice(0, 200),
        confirm_new: sure, allow_far: sure,
      });
      $("upload").value = "";
      say($("upload-status"), `${added.accepted} facts added, ${added.duplicates} were known, `
        + `${added.new_entities.length} new names.`);
      await done();
    } catch (error) {
      say($("upload-status"), error.message);
      show($("upload-confirm"), error.status === 409);
    }
  };
  $("upload").addEventListener("change", () => add(false));
  $("upload-confirm").addEventListener("click", () => add(true));
  $("export").addEventListener("click", () =>
    download("/export?format=csv", "facts.csv").catch(fail));
  $("export-changes").addEventListener("click", () =>
    download("/export?format=csv&changes=true", "changes.csv").catch(fail));
}
