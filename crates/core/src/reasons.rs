//! The shape of a table of counted reasons, which a packet's way through a director and one on a
//! server each fill with their own.

/// Makes an enum of numbered reasons, each with its stable name and its meaning: the text of its
/// comment.
macro_rules! reasons {
    (
        $(#[$about:meta])* $repr:ident;
        $($(#[doc = $doc:literal])+ $name:ident = $number:expr, $text:literal;)*
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr($repr)]
        pub enum Reason { $($(#[doc = $doc])+ $name = $number,)* }

        // Its number is each reason's place in the list.
        const _: () = {
            let mut place = 0;
            while place < Reason::ALL.len() {
                assert!(Reason::ALL[place] as usize == place);
                place += 1;
            }
        };

        impl Reason {
            /// Every reason, in the order of their numbers.
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)*];

            /// The stable name in metrics, JSON and cases.
            pub const fn name(self) -> &'static str {
                match self { $(Reason::$name => $text,)* }
            }

            /// Its meaning, in a sentence or two.
            pub const fn about(self) -> &'static str {
                match self { $(Reason::$name => concat!($($doc),+).trim_ascii_start(),)* }
            }
        }
    };
}
