use super::*;

#[test]
fn verdict_is_of_all_claims() {
    let claim = |holds| Claim { paper: "", ours: String::new(), holds };
    let verdict =
        |all: &[Option<bool>]| Verdict::of(&all.iter().map(|holds| claim(*holds)).collect::<Vec<_>>());
    assert_eq!(verdict(&[Some(true), Some(true)]), Verdict::Holds);
    assert_eq!(verdict(&[Some(true), Some(false)]), Verdict::HoldsInPart);
    assert_eq!(verdict(&[Some(false)]), Verdict::DoesNotHold);
    assert_eq!(verdict(&[Some(true), None]), Verdict::NotDecided);
    assert_eq!(verdict(&[]), Verdict::NotDecided);
}
