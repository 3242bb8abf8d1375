//! RULER: thirteen synthetic tasks, generated to a length (Hsieh et al. 2024, arXiv:2404.06654).
//!
//! Each base task has a file (`niah`, `vt`, `cwe`, `fwe`, `qa`). `fit` searches the size of an example, `published` has RULER's fixed
//! shuffles, and `reworded` words the same tasks differently. Prompts and parameters are data in `tasks/ruler/*.toml`. Examples are
//! drawn from the published distribution by generators written here, so they are not the published examples.
//!
//! To add a base task, write one file with a `BASE`, and add one line to `BASES` of `family`.

mod base;
mod cwe;
mod family;
pub(crate) mod fit;
mod fwe;
mod niah;
mod numbered_documents;
mod published;
mod qa;
mod qa_synth;
mod reworded;
mod ruler_task;
mod shape;
pub(crate) mod template;
mod vt;

pub use self::family::{Ruler, definition, for_training, max_new_tokens, shapes};
pub use self::niah::{NeedleKind, NeedleTexts, enumerate, uuid};
pub use self::qa_synth::{World, WorldFile, WorldQuestion};
pub use self::reworded::{Reworded, reworded_shapes};
pub use self::shape::Shape;
pub use self::template::{RulerDefinition, substitute};

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
