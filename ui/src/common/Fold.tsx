/** Something that is there and not in the way. Its content is made when it is first opened. */

import type { ComponentChildren } from 'preact'
import { useState } from 'preact/hooks'

export function Fold({ title, children, open = false }: { title: ComponentChildren; children: () => ComponentChildren; open?: boolean }) {
  const [opened, setOpened] = useState(open)
  return (
    <details class="fold" open={open} onToggle={(event) => event.currentTarget.open && setOpened(true)}>
      <summary>{title}</summary>
      {opened && children()}
    </details>
  )
}
