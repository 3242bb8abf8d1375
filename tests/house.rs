//! The structure of the code: the files of a crate do not import each other in a cycle, no two public types of a crate share a name,
//! and the scale of logits is computed in one place.
//!
//! The compiler already ensures that no crate imports from one above it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use syn::visit::{self, Visit};

/// The crates, with the folders of their sources.
const CRATES: &[(&str, &str)] = &[
    ("spattn-base", "crates/base/src"),
    ("spattn-hub", "crates/hub/src"),
    ("spattn-stats", "crates/stats/src"),
    ("spattn-kernels", "crates/kernels/src"),
    ("spattn-cuda", "crates/cuda/src"),
    ("spattn-attention", "crates/attention/src"),
    ("spattn-model", "crates/model/src"),
    ("spattn-tasks", "crates/tasks/src"),
    ("spattn-eval", "crates/eval/src"),
    ("spattn-lab", "crates/lab/src"),
    ("spattn", "src"),
    ("spattn-train-rows", "crates/train-rows/src"),
];

/// A module, by the names from its crate's root down.
type Module = Vec<String>;

/// A source file of a crate, without code that is compiled only for tests.
struct Source {
    path: PathBuf,
    items: Vec<syn::Item>,
}

fn sources(folder: &str) -> BTreeMap<Module, Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut found = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !is_of_tests(&stem) {
                let text = fs::read_to_string(&path).unwrap();
                let items = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display())).items;
                let items = items.into_iter().filter(|item| !is_test(attributes(item))).collect();
                found.insert(module_of(path.strip_prefix(&root).unwrap()), Source { path, items });
            }
        }
    }
    found
}

fn is_of_tests(stem: &str) -> bool {
    matches!(stem, "tests" | "testing") || stem.ends_with("_tests")
}

fn module_of(file: &Path) -> Module {
    let mut names: Module = file.with_extension("").iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|name| matches!(name.as_str(), "mod" | "lib" | "main")) {
        names.pop();
    }
    names
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    use syn::Item::*;
    match item {
        Const(i) => &i.attrs,
        Enum(i) => &i.attrs,
        Fn(i) => &i.attrs,
        Impl(i) => &i.attrs,
        Mod(i) => &i.attrs,
        Static(i) => &i.attrs,
        Struct(i) => &i.attrs,
        Trait(i) => &i.attrs,
        Type(i) => &i.attrs,
        Use(i) => &i.attrs,
        _ => &[],
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition == "test" || condition.starts_with("all (test")
        }
        _ => false,
    })
}

/// The full paths of a `use`, each with the name that it introduces.
fn paths_of(tree: &syn::UseTree, before: &[String], out: &mut Vec<(Module, String)>) {
    let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
    match tree {
        syn::UseTree::Path(path) => paths_of(&path.tree, &with(&path.ident), out),
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| paths_of(tree, before, out)),
        syn::UseTree::Name(name) if name.ident == "self" => {
            out.push((before.to_vec(), before.last().cloned().unwrap_or_default()));
        }
        syn::UseTree::Name(name) => out.push((with(&name.ident), name.ident.to_string())),
        syn::UseTree::Rename(rename) => out.push((with(&rename.ident), rename.rename.to_string())),
        syn::UseTree::Glob(_) => out.push((before.to_vec(), "*".to_owned())),
    }
}

/// The path from the root of the crate; `None` if it leads to another crate.
fn absolute(path: &[String], module: &Module) -> Option<Module> {
    let mut at = module.clone();
    let mut rest = path;
    match path.first().map(String::as_str)? {
        "crate" => {
            at.clear();
            rest = &path[1..];
        }
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|name| name == "super") {
                at.pop()?;
                rest = &rest[1..];
            }
        }
        _ => return None,
    }
    Some([at, rest.to_vec()].concat())
}

/// Collects the paths that a file uses, in code and in imports that it does not re-export.
struct Named<'a> {
    module: &'a Module,
    children: BTreeSet<String>,
    paths: Vec<Module>,
}

impl Named<'_> {
    fn add(&mut self, path: Module) {
        // A child module can be named without `self`.
        let path = match path.first() {
            Some(first) if self.children.contains(first) => [vec!["self".to_owned()], path].concat(),
            _ => path,
        };
        self.paths.extend(absolute(&path, self.module));
    }
}

impl<'ast> Visit<'ast> for Named<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        // A re-export for child modules does not count as an import of the module itself.
        if matches!(item.vis, syn::Visibility::Inherited) {
            let mut paths = Vec::new();
            paths_of(&item.tree, &[], &mut paths);
            paths.into_iter().for_each(|(path, _)| self.add(path));
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    /// The visibility of an item does not count as an import.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            self.add(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }
}

/// The re-exports of each module: maps a module and a new name to the original path.
fn passed_on(sources: &BTreeMap<Module, Source>) -> BTreeMap<(Module, String), Module> {
    let mut passed = BTreeMap::new();
    for (module, source) in sources {
        for item in &source.items {
            // Child modules can use private imports too.
            let syn::Item::Use(item) = item else { continue };
            let mut paths = Vec::new();
            paths_of(&item.tree, &[], &mut paths);
            for (path, name) in paths {
                let is_child = |first: &String| sources.contains_key(&[module.clone(), vec![first.clone()]].concat());
                let path = match path.first().is_some_and(is_child) {
                    true => [vec!["self".to_owned()], path].concat(),
                    false => path,
                };
                passed.extend(absolute(&path, module).map(|path| ((module.clone(), name), path)));
            }
        }
    }
    passed
}

/// The file that defines the item at a path.
fn file_of(
    path: &Module,
    sources: &BTreeMap<Module, Source>,
    passed: &BTreeMap<(Module, String), Module>,
) -> Option<Module> {
    let mut path = path.clone();
    // Names may be re-exported several times.
    for _ in 0..8 {
        let depth = (0..=path.len()).rev().find(|depth| sources.contains_key(&path[..*depth]))?;
        let module = path[..depth].to_vec();
        let next = path.get(depth).and_then(|name| passed.get(&(module.clone(), name.clone())));
        match next {
            Some(from) if *from != path => path = [from.clone(), path[depth + 1..].to_vec()].concat(),
            _ => return Some(module),
        }
    }
    None
}

fn imports(sources: &BTreeMap<Module, Source>) -> BTreeMap<Module, BTreeSet<Module>> {
    let passed = passed_on(sources);
    let of = |(module, source): (&Module, &Source)| {
        let is_child = |path: &&Module| path.len() == module.len() + 1 && path.starts_with(module);
        let children = sources.keys().filter(is_child).filter_map(|path| path.last().cloned()).collect();
        let mut named = Named { module, children, paths: Vec::new() };
        source.items.iter().for_each(|item| named.visit_item(item));
        let files = named.paths.iter().filter_map(|path| file_of(path, sources, &passed));
        (module.clone(), files.filter(|file| file != module).collect())
    };
    sources.iter().map(of).collect()
}

/// All files that a file's imports lead to, directly or indirectly.
fn reached(from: &Module, imports: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<Module> {
    let mut reached = BTreeSet::new();
    let mut left = vec![from.clone()];
    while let Some(next) = left.pop() {
        let new = imports.get(&next).into_iter().flatten().filter(|file| reached.insert((*file).clone()));
        left.extend(new.cloned());
    }
    reached
}

/// The cycles among imports: sets of files that all lead to each other.
fn circles(imports: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<BTreeSet<Module>> {
    let all: BTreeMap<&Module, BTreeSet<Module>> = imports.keys().map(|file| (file, reached(file, imports))).collect();
    let circle = |(file, reached): (&&Module, &BTreeSet<Module>)| {
        let members: BTreeSet<Module> = reached.iter().filter(|other| all[other].contains(*file)).cloned().collect();
        (members.len() > 1).then_some(members)
    };
    all.iter().filter_map(circle).collect()
}

/// The names and folders of the workspace's crates, from the `Cargo.toml` of each.
fn members() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().file_name());
    let folders = folders.map(|folder| format!("crates/{}", folder.to_string_lossy())).chain([".".to_owned()]);
    let name = |folder: &str| -> Option<String> {
        let text = fs::read_to_string(root.join(folder).join("Cargo.toml")).ok()?;
        let config: toml::Table = text.parse().unwrap();
        Some(config["package"]["name"].as_str().unwrap().to_owned())
    };
    folders.filter_map(|folder| Some((name(&folder)?, folder))).collect()
}

#[test]
fn every_crate_is_checked_tested_and_on_the_map() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let (map, manifest) = (read("ARCHITECTURE.md"), read("Cargo.toml").parse::<toml::Table>().unwrap());
    let tested = manifest["workspace"]["default-members"].as_array().unwrap();
    let members = members();
    for (name, folder) in &members {
        let source = format!("{folder}/src").replace("./", "");
        assert!(CRATES.contains(&(name.as_str(), source.as_str())), "CRATES has no `{name}` in {source}");
        assert!(map.contains(&format!("\n| `{name}`")), "ARCHITECTURE.md has no row of `{name}`");
        // `spattn-cuda` cannot be built without a CUDA compiler.
        let is_tested = tested.iter().any(|member| member.as_str() == Some(folder));
        assert!(is_tested || name == "spattn-cuda", "`cargo test` leaves out {folder}: name it in default-members");
    }
    assert_eq!(members.len(), CRATES.len(), "CRATES has what is not there");
}

#[test]
fn every_module_of_the_program_is_on_the_map() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let map = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let modules: BTreeSet<String> = sources("src").into_keys().filter_map(|module| module.into_iter().next()).collect();
    for module in modules.iter().filter(|module| *module != "main") {
        assert!(map.contains(&format!("\n| `{module}` |")), "ARCHITECTURE.md has no row of the module `{module}`");
    }
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let mut found = Vec::new();
    for (name, folder) in CRATES {
        let sources = sources(folder);
        assert!(sources.len() > 1, "{name}: no source in {folder}");
        for circle in circles(&imports(&sources)) {
            let files: Vec<String> = circle.iter().map(|file| sources[file].path.display().to_string()).collect();
            found.push(format!("{name}:\n  {}", files.join("\n  ")));
        }
    }
    assert!(found.is_empty(), "files that import each other, directly or around:\n{}", found.join("\n"));
}

#[test]
fn a_circle_is_found_and_a_name_that_is_passed_on_is_followed() {
    let parse = |text: &str| Source { path: PathBuf::new(), items: syn::parse_file(text).unwrap().items };
    let module = |path: &str| path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect::<Module>();
    let crate_of = |files: &[(&str, &str)]| files.iter().map(|(path, text)| (module(path), parse(text))).collect();
    let circle: BTreeMap<Module, Source> = crate_of(&[
        ("", "mod a; mod b; mod c; pub use b::B; use c::C;"),
        ("a", "use crate::B; pub struct A;"),
        ("b", "pub struct B; fn f() { super::c::g(); }"),
        ("c", "pub struct C; pub fn g() { let _ = crate::a::A; }"),
    ]);
    let expected = BTreeSet::from([["a", "b", "c"].map(module).into_iter().collect()]);
    assert_eq!(circles(&imports(&circle)), expected);
    let line: BTreeMap<Module, Source> = crate_of(&[
        ("", "mod a; mod b; pub use a::A;"),
        ("a", "pub struct A;"),
        ("b", "use crate::A; #[cfg(test)] mod tests { use crate::b; }"),
    ]);
    assert_eq!(circles(&imports(&line)), BTreeSet::new());
}

/// Crates set `doctest = false` to save the time of searching comments for examples, so there must be none.
#[test]
fn no_example_in_a_comment_goes_unchecked() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for (_, folder) in CRATES {
        for source in sources(folder).values() {
            let text = fs::read_to_string(&source.path).unwrap();
            let comments = text.lines().filter_map(|line| line.trim_start().strip_prefix("//"));
            let docs = comments.filter_map(|line| line.strip_prefix(['/', '!']));
            let fences = docs.filter_map(|line| line.trim_start().strip_prefix("```"));
            let runs = fences.step_by(2).any(|info| info.trim() != "text");
            found.extend(runs.then(|| source.path.strip_prefix(root).unwrap().display().to_string()));
        }
    }
    assert!(found.is_empty(), "make these a test, or mark them as ```text:\n{}", found.join("\n"));
}

/// The public types of a crate that may share a name, and why.
const SHARED_NAMES: [(&str, &str, &str); 4] = [
    ("spattn-attention", "BuilderLaunch", "each backend has its own, and a build has one of them"),
    ("spattn-attention", "DeviceLaunch", "each backend has its own, and a build has one of them"),
    ("spattn-attention", "KvHandle", "each backend has its own, and a build has one of them"),
    ("spattn-attention", "MaskLaunch", "each backend has its own, and a build has one of them"),
];

/// The names of a crate's public types that several modules define.
fn shared_names(sources: &BTreeMap<Module, Source>) -> BTreeSet<String> {
    let mut defined: BTreeMap<String, usize> = BTreeMap::new();
    for item in sources.values().flat_map(|source| &source.items) {
        let (name, visibility) = match item {
            syn::Item::Struct(item) => (&item.ident, &item.vis),
            syn::Item::Enum(item) => (&item.ident, &item.vis),
            syn::Item::Trait(item) => (&item.ident, &item.vis),
            syn::Item::Type(item) => (&item.ident, &item.vis),
            _ => continue,
        };
        if matches!(visibility, syn::Visibility::Public(_)) {
            *defined.entry(name.to_string()).or_default() += 1;
        }
    }
    defined.into_iter().filter(|(_, count)| *count > 1).map(|(name, _)| name).collect()
}

#[test]
fn no_two_public_types_of_a_crate_share_a_name() {
    let shared = |&(name, folder): &(&'static str, &str)| {
        shared_names(&sources(folder)).into_iter().map(move |shared| (name, shared))
    };
    let found: BTreeSet<(&str, String)> = CRATES.iter().flat_map(shared).collect();
    let allowed = SHARED_NAMES.map(|(name, shared, _)| (name, shared.to_owned())).into();
    assert_eq!(found, allowed, "give each type a name of its own, or a reason in SHARED_NAMES");
}

/// The file that computes `1/√d`.
const SCALE: &str = "crates/attention/src/types/attention_spec.rs";

/// The other files that take the root of a width, and what for.
const OTHER_ROOTS: [(&str, &str); 2] = [
    ("crates/attention/src/methods/hash_attention/training.rs", "the bound of the weights that training begins with"),
    ("crates/attention/src/methods/hip/reference.rs", "a naive reference, compiled for tests alone"),
];

/// Roots of the width of a head, by the name of the width.
#[derive(Default)]
struct RootsOfWidths(Vec<String>);

impl<'ast> Visit<'ast> for RootsOfWidths {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if call.method == "sqrt" || call.method == "powf" {
            self.0.extend(width_in(&call.receiver));
        }
        visit::visit_expr_method_call(self, call);
    }
}

/// The name of a head's width if a number is one, or a product with one.
fn width_in(number: &syn::Expr) -> Option<String> {
    let width = |name: String| Some(name).filter(|name| matches!(name.to_lowercase().as_str(), "d" | "head_dim"));
    match number {
        syn::Expr::Paren(of) => width_in(&of.expr),
        syn::Expr::Cast(of) => width_in(&of.expr),
        syn::Expr::Reference(of) => width_in(&of.expr),
        syn::Expr::Unary(of) => width_in(&of.expr),
        syn::Expr::Binary(of) => width_in(&of.left).or_else(|| width_in(&of.right)),
        syn::Expr::Call(of) => of.args.iter().find_map(width_in),
        syn::Expr::Path(of) => width(of.path.segments.last()?.ident.to_string()),
        syn::Expr::Field(of) => match &of.member {
            syn::Member::Named(name) => width(name.to_string()),
            syn::Member::Unnamed(_) => None,
        },
        // The length of a query or key is the width of a head.
        syn::Expr::MethodCall(of) if of.method == "len" => match &*of.receiver {
            syn::Expr::Path(of) => {
                of.path.get_ident().filter(|name| *name == "query" || *name == "key").map(ToString::to_string)
            }
            _ => None,
        },
        syn::Expr::MethodCall(of) => width(of.method.to_string()),
        _ => None,
    }
}

/// The layer's `AttentionSpec` scales logits: no other code computes a scale from the width of a head.
#[test]
fn the_factor_of_logits_is_computed_in_one_place() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = BTreeSet::new();
    for (_, folder) in CRATES {
        for source in sources(folder).values() {
            let mut roots = RootsOfWidths::default();
            source.items.iter().for_each(|item| roots.visit_item(item));
            if !roots.0.is_empty() {
                found.insert(source.path.strip_prefix(root).unwrap().to_string_lossy().into_owned());
            }
        }
    }
    let expected = OTHER_ROOTS.iter().map(|(file, _)| file.to_string()).collect();
    // This file takes the root of a number that its caller names.
    found.remove(SCALE);
    assert_eq!(found, expected, "take the scale from the layer's spec, or name here what the root is");
}

#[test]
fn a_root_of_a_width_is_found_however_the_width_is_called() {
    let roots = |text: &str| {
        let mut roots = RootsOfWidths::default();
        roots.visit_file(&syn::parse_file(&format!("fn f() {{ {text} }}")).unwrap());
        roots.0.len()
    };
    for text in [
        "let scale = 1.0 / (d as f32).sqrt();",
        "(self.shape.d as f64).sqrt()",
        "x * f64::from(chunk.d() as u32).sqrt()",
        "(d as f32 * coverage).sqrt()",
        "(query.len() as f32 * coverage).sqrt()",
        "(c.head_dim as f32).powf(-0.5)",
        "(D as f32).sqrt().recip()",
    ] {
        assert_eq!(roots(text), 1, "{text}");
    }
    for text in [
        "(x[..d].len() as f32).sqrt()",
        "variance.sqrt()",
        "rows[row * d].sqrt()",
        "#[cfg(test)] mod t { fn f() { d.sqrt(); } }",
    ] {
        assert_eq!(roots(text), 0, "{text}");
    }
}

/// The README's first command is `cargo run`. In a workspace with several programs it needs a default.
#[test]
fn cargo_run_starts_the_program() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let told = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    let packages = told["packages"].as_array().unwrap();
    let defaults: Vec<&str> = packages.iter().filter_map(|package| package["default_run"].as_str()).collect();
    assert_eq!(defaults, ["spattn"]);
}
