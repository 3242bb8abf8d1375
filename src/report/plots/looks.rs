//! The colour, marker and dashes of each method, the same in all figures by its place in the registry; and the names of settings.

use super::pen::SeriesLook;
use crate::report::parameters::ShownParams;
use spattn_attention::{Role, methods};
use spattn_eval::records::record::REFERENCE;

/// The looks of series, each given by its method. Several settings of one method have its colour and marker, and differ in their dashes.
pub fn looks(of: &[&str]) -> Vec<SeriesLook> {
    let strangers = strangers(of);
    let places: Vec<(Role, usize)> = of.iter().map(|name| (Role::of(name), place(name, &strangers))).collect();
    let look = |(at, &(role, place)): (usize, &(Role, usize))| {
        let setting = places[..at].iter().filter(|other| **other == (role, place)).count();
        match role {
            // A second setting of dense attention is one with keys and values of another type.
            Role::Reference if setting > 0 => SeriesLook::Method(known_methods(), setting - 1),
            Role::Reference => SeriesLook::Dense,
            Role::Method => SeriesLook::Method(place, setting),
            Role::Oracle => SeriesLook::Oracle(place, setting),
            Role::Floor => SeriesLook::Floor(place, setting),
        }
    };
    places.iter().enumerate().map(look).collect()
}

/// The looks of series that may be methods. If all are methods, their own looks; otherwise looks by position.
pub fn of_names(names: &[&str]) -> Vec<SeriesLook> {
    if names.iter().all(|name| is_known(name)) {
        looks(names)
    } else {
        (0..names.len()).map(|i| SeriesLook::Method(i, 0)).collect()
    }
}

/// The looks of lines that may each be about a method, without different dashes, because dashes mean something else there. If all are
/// methods and no two look alike, their own looks; otherwise looks by position, except for dense attention.
pub fn of_lines(methods: &[Option<&str>]) -> Vec<SeriesLook> {
    let known: Option<Vec<&str>> = methods.iter().copied().collect();
    let own = known.filter(|names| names.iter().all(|name| is_known(name))).map(|names| looks(&names));
    let is_seen = |(i, look): (usize, &SeriesLook), all: &[SeriesLook]| {
        all[..i].iter().any(|other| (other.colour(), other.mark()) == (look.colour(), look.mark()))
    };
    match own.filter(|own| !own.iter().enumerate().any(|look| is_seen(look, own))) {
        Some(own) => own,
        None => {
            let is_dense = |method: &Option<&str>| method.is_some_and(|method| deciding(method) == REFERENCE);
            let look = |(i, method)| if is_dense(method) { SeriesLook::Dense } else { SeriesLook::Method(i, 0) };
            methods.iter().enumerate().map(look).collect()
        }
    }
}

fn is_known(name: &str) -> bool {
    methods::all().any(|entry| entry.name == deciding(name))
}

/// A method's name in a legend, with its role for an oracle or a floor.
pub fn legend_name(method: &str) -> String {
    match Role::of(method) {
        Role::Method | Role::Reference => method.to_owned(),
        role => format!("{method} ({})", role.name()),
    }
}

/// The method that determines the look. For a combination `reader>decoder`, that is the decoder, or the reader if the decoder is dense.
fn deciding(name: &str) -> &str {
    let part = match name.split_once('>') {
        Some((reader, REFERENCE)) => reader,
        Some((_, decoder)) => decoder,
        None => name,
    };
    part.split(':').next().unwrap_or(part)
}

/// Methods that are not in the registry, for example in records of other programs.
fn strangers<'a>(of: &[&'a str]) -> Vec<&'a str> {
    let mut unknown: Vec<&str> =
        of.iter().map(|name| deciding(name)).filter(|name| methods::all().all(|entry| entry.name != *name)).collect();
    unknown.sort_unstable();
    unknown.dedup();
    unknown
}

/// The number of registered methods that are neither oracle, floor nor reference. Further looks come after these.
fn known_methods() -> usize {
    methods::all().filter(|entry| entry.role == Role::Method).count()
}

/// A method's index among those of its role. Unregistered methods come last.
fn place(name: &str, strangers: &[&str]) -> usize {
    let name = deciding(name);
    let Some(entry) = methods::all().find(|entry| entry.name == name) else {
        return known_methods() + strangers.iter().position(|stranger| *stranger == name).unwrap_or(0);
    };
    methods::all().filter(|other| other.role == entry.role).position(|other| other.name == name).unwrap_or(0)
}

/// The most settings on a page that can be told apart and named below it.
pub(super) const MOST_SETTINGS: usize = 20;

/// The names of settings in a legend: methods, and parameters if a method has several settings. Parameters that all settings of a method
/// share are in the note instead, if there is one.
pub(super) fn setting_names(settings: &[(&str, &str)]) -> (Vec<String>, Option<String>) {
    let shown = ShownParams::of(settings.iter().copied(), usize::MAX);
    let name = |(method, params): &(&str, &str)| match settings.iter().filter(|other| other.0 == *method).count() > 1 {
        true => legend_name(method).replacen(*method, &shown.name(method, params), 1),
        false => legend_name(method),
    };
    (settings.iter().map(name).collect(), shown.note())
}

#[cfg(test)]
mod tests {
    use super::super::palette::tests::distance;
    use super::*;

    fn look(name: &str) -> SeriesLook {
        looks(&[name])[0]
    }

    #[test]
    fn a_method_looks_the_same_whatever_is_beside_it() {
        assert_eq!(look("streaming_llm"), SeriesLook::Method(0, 0));
        assert_eq!(look("a_shape"), SeriesLook::Method(1, 0));
        let quest = look("quest");
        assert_eq!(looks(&["topk", "loki", "quest", "full", "random"])[2], quest);
        assert_eq!(looks(&["quest"; 3])[1..], [quest.of_setting(1), quest.of_setting(2)]);
        assert_eq!(
            looks(&["full", "topk", "topk_norm", "vattention", "random", "topk"]),
            [
                SeriesLook::Dense,
                SeriesLook::Oracle(0, 0),
                SeriesLook::Oracle(1, 0),
                SeriesLook::Oracle(4, 0),
                SeriesLook::Floor(0, 0),
                SeriesLook::Oracle(0, 1)
            ]
        );
        assert_eq!(["quest", "topp", "random"].map(legend_name), ["quest", "topp (oracle)", "random (floor)"]);
    }

    #[test]
    fn readers_and_strangers_have_looks_too() {
        assert_eq!(looks(&["quest", "minference:a=1>quest"])[1], look("quest").of_setting(1));
        assert_eq!(look("minference:a=1>full"), look("minference"));
        let [own, other] = looks(&["theirs", "another"])[..] else { panic!("two looks") };
        assert_ne!(own, other);
        assert!(methods::all().all(|entry| look(entry.name) != own), "a stranger takes nobody's look");
    }

    #[test]
    fn lines_that_are_methods_look_like_them() {
        assert_eq!(of_names(&["quest:density=0.1", "topk"]), looks(&["quest", "topk"]));
        assert_eq!(of_names(&["quest", "mean of heads"]), [SeriesLook::Method(0, 0), SeriesLook::Method(1, 0)]);
        let lines = |names: &[&str]| of_lines(&names.iter().map(|name| Some(*name)).collect::<Vec<_>>());
        assert_eq!(lines(&["full", "topk:k=8", "quest"]), looks(&["full", "topk", "quest"]));
        // Settings of one method would differ only in dashes, so they get looks by position.
        assert_eq!(
            lines(&["full", "topk:k=8", "topk:k=16"]),
            [SeriesLook::Dense, SeriesLook::Method(1, 0), SeriesLook::Method(2, 0)]
        );
        assert_eq!(of_lines(&[Some("quest"), None]), [SeriesLook::Method(0, 0), SeriesLook::Method(1, 0)]);
    }

    #[test]
    fn methods_of_near_colours_have_other_marks() {
        // CIELAB distance as seen by the type of colour vision that sees the least difference.
        const NEAR: f64 = 15.0;
        let all: Vec<&str> = methods::METHODS.iter().map(|entry| entry.name).collect();
        let more: Vec<SeriesLook> = (0..64).map(|place| SeriesLook::Method(place, 0)).collect();
        for looks in [looks(&all), more] {
            for (i, a) in looks.iter().enumerate() {
                for b in &looks[..i] {
                    let is_far = distance(a.colour(), b.colour()) >= NEAR;
                    assert!(is_far || a.mark() != b.mark() || a.dash() != b.dash(), "{a:?} looks as {b:?}");
                    assert!((a.colour(), a.mark()) != (b.colour(), b.mark()), "{a:?} looks as {b:?} but for dashes");
                }
            }
        }
        // Methods that often appear in the same figure of a paper.
        let common =
            ["streaming_llm", "snapkv", "h2o", "quest", "magicpig", "double_sparsity", "loki", "hash_attention"];
        for (i, a) in common.iter().enumerate() {
            assert!(common[..i].iter().all(|b| look(a).colour() != look(b).colour()), "{a}");
        }
        let dashes: Vec<_> = (0..6).map(|setting| SeriesLook::Method(0, setting).dash()).collect();
        assert!(dashes.iter().enumerate().all(|(i, dash)| !dashes[..i].contains(dash)), "settings differ");
    }
}
