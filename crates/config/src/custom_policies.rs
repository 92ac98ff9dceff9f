//! Policies of other crates, by the names that configurations may give.

use paternoster_batching::{AUTO, CustomPolicy, PolicyKind};

/// The registered policies. A server passes them to whatever reads configurations.
#[derive(Clone, Debug, Default)]
pub struct CustomPolicies(Vec<CustomPolicy>);

/// Why a policy cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the policy '{0}' cannot be registered: expected a name of letters, digits, '-' and '_' that no other policy has"
)]
pub struct PolicyNameError(&'static str);

impl CustomPolicies {
    /// Adds a policy.
    ///
    /// # Errors
    /// If the name is not a word, or another policy has it.
    pub fn register(&mut self, policy: CustomPolicy) -> Result<(), PolicyNameError> {
        let name = policy.name();
        let fits = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
        let is_word = !name.is_empty() && name.chars().all(fits);
        let is_taken = name == AUTO || PolicyKind::ALL.iter().any(|kind| kind.name() == name);
        if !is_word || is_taken || self.find(name).is_some() {
            return Err(PolicyNameError(name));
        }
        self.0.push(policy);
        Ok(())
    }

    /// Returns the policy with a name.
    pub(super) fn find(&self, name: &str) -> Option<&CustomPolicy> {
        self.0.iter().find(|policy| policy.name() == name)
    }

    /// Returns all names, in the order in which they were registered.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(CustomPolicy::name)
    }
}

#[cfg(test)]
mod tests {
    use paternoster_batching::WindowKnobs;

    use super::*;

    #[test]
    fn a_name_is_a_word_that_one_policy_has() {
        let mut policies = CustomPolicies::default();
        let mut register = |name| policies.register(CustomPolicy::new(name, WindowKnobs::default()));
        assert_eq!([register("pairs"), register("my-pairs_2")], [Ok(()); 2]);
        for name in ["pairs", "auto", "serial", "window", "cellular", "", "two words", "a.b"] {
            assert_eq!(register(name), Err(PolicyNameError(name)));
        }
        assert_eq!(policies.names().collect::<Vec<_>>(), ["pairs", "my-pairs_2"]);
    }
}
