/** A row of tabs that arrow keys walk, and the choice it makes; the chosen one is in sight where the row is longer than its place. */

import { useLayoutEffect, useRef } from 'preact/hooks'

interface Props<T extends string> {
  label: string
  value: T
  tabs: [value: T, label: string][]
  onChange: (value: T) => void
}

export function Tabs<T extends string>({ label, value, tabs, onChange }: Props<T>) {
  const row = useRef<HTMLDivElement>(null)
  useLayoutEffect(() => {
    row.current?.querySelector('[aria-selected=true]')?.scrollIntoView({ block: 'nearest', inline: 'nearest' })
  }, [value])
  const step = (event: KeyboardEvent): void => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key]
    if (by === undefined) return
    const at = tabs.findIndex(([tab]) => tab === value)
    const to = (at + by + tabs.length) % tabs.length
    onChange(tabs[to]![0])
    ;((event.currentTarget as HTMLElement).children[to] as HTMLElement).focus()
    event.preventDefault()
  }
  return (
    <div ref={row} class="tabs" role="tablist" aria-label={label} onKeyDown={step}>
      {tabs.map(([tab, text]) => (
        <button key={tab} role="tab" aria-selected={tab === value} tabIndex={tab === value ? 0 : -1} onClick={() => onChange(tab)}>
          {text}
        </button>
      ))}
    </div>
  )
}
