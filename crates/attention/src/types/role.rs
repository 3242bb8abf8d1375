//! What a method is for, among those that it is compared with.

use crate::methods;

/// One for each registered method: conclusions and figures go by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Attention over all tokens, which every other is held against.
    Reference,
    /// A method that somebody published to be used.
    Method,
    /// It sees exact scores of all candidates before it chooses: what it reaches shows what the budget allows, not
    /// what can be had for it.
    Oracle,
    /// It chooses without looking: what it reaches is had for nothing.
    Floor,
}

impl Role {
    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Role::Reference => "reference",
            Role::Method => "method",
            Role::Oracle => "oracle",
            Role::Floor => "floor",
        }
    }

    /// A line that says what it means.
    pub fn about(self) -> &'static str {
        match self {
            Role::Reference => "reference: attends all, and is what every other is held against",
            Role::Method => "method: published to be used",
            Role::Oracle => {
                "oracle: sees all exact scores before it chooses; shows what a budget allows, is never a winner"
            }
            Role::Floor => "floor: chooses without looking; what it reaches is had for nothing",
        }
    }

    /// Of the method that a record names, which may be a reader and a decoder (`minference>topk`): an oracle or a floor
    /// where one of them is. A name that is not registered, of another program's method, is a method's.
    pub fn of(name: &str) -> Self {
        let of_one = |label: &str| {
            let bare = label.split(':').next().unwrap_or(label);
            methods::all().find(|entry| entry.name == bare).map_or(Role::Method, |entry| entry.role)
        };
        let Some((reader, decoder)) = name.split_once('>') else { return of_one(name) };
        let both = [of_one(reader), of_one(decoder)];
        [Role::Oracle, Role::Floor].into_iter().find(|role| both.contains(role)).unwrap_or(Role::Method)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_registered_method_has_the_role_that_it_plays() {
        let of = |role: Role| -> Vec<&str> {
            methods::METHODS.iter().filter(|entry| entry.role == role).map(|entry| entry.name).collect()
        };
        assert_eq!(of(Role::Reference), ["full"]);
        assert_eq!(of(Role::Oracle), ["topk", "topk_norm", "topp", "oracle_sampling", "vattention"]);
        assert_eq!(of(Role::Floor), ["random"]);
        let published = of(Role::Method);
        assert_eq!(published.len(), methods::METHODS.len() - 7);
        for name in ["quest", "magicpig", "streaming_llm", "snapkv", "knn", "hash_attention", "minference"] {
            assert!(published.contains(&name), "{name}");
        }
    }

    #[test]
    fn a_reader_and_a_decoder_have_one_role() {
        let roles = [
            ("full", Role::Reference),
            ("minference>full", Role::Method),
            ("full>quest", Role::Method),
            ("minference>topk", Role::Oracle),
            ("topk:k=8,per=kv_head>quest", Role::Oracle),
            ("a_shape:window=64>random", Role::Floor),
            ("somebody_elses", Role::Method),
        ];
        for (name, role) in roles {
            assert_eq!(Role::of(name), role, "{name}");
        }
    }
}
